"""Scalar functions of the compiler as machine code over flat arrays."""

from collections.abc import Callable, Mapping
from ctypes import c_int64, c_void_p

import numpy as np

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import INDEX, Kind, LaneValue, index
from csrun.executable import machine_code


class LaneFunctions:
    """Functions by name, in one object; each writes its result in values of `dtype`.

    operands: for each function the types of its operands
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[..., LaneValue]],
        operands: Mapping[str, tuple[str, ...]],
        lanes: int = 16,
    ) -> None:
        self._lanes = lanes
        self._operands = operands
        self._dtypes: dict[str, str] = {}
        texts, declared = [], {}
        for name, function in functions.items():
            code = Code()
            with code.loop(index(0), LaneValue("%n", INDEX), lanes) as at:
                args = [
                    code.load(code.offset(f"%x{n}", dtype, at), Kind(dtype, lanes))
                    for n, dtype in enumerate(operands[name])
                ]
                out = function(code, *args)
                self._dtypes[name] = out.kind.dtype
                code.store(out, code.offset("%y", out.kind.dtype, at))
            pointers = ", ".join(f"ptr %x{n}" for n in range(len(operands[name])))
            head = f"define void @{name}({pointers}, ptr %y, i64 %n) nounwind {{"
            texts += [head, "entry:", *code.entry, *code.lines, "  ret void", "}"]
            declared |= code.declared
        text = "\n".join([*texts, *declared.values()]) + "\n"
        self._code = machine_code.MachineCode([machine_code.build(text)])

    def __call__(self, name: str, *arrays: np.ndarray) -> np.ndarray:
        """Return the function's results for flat arrays of one length."""
        size = len(arrays[0])
        padded = -(-size // self._lanes) * self._lanes
        own = []
        for array, dtype in zip(arrays, self._operands[name], strict=True):
            own.append(np.zeros(padded, dtype))
            own[-1][:size] = array
        out = np.empty(padded, self._dtypes[name])
        pointers = [array.ctypes.data for array in (*own, out)]
        types = (*(c_void_p for _ in pointers), c_int64)
        self._code.function(name, *types)(*pointers, padded)
        return out[:size]
