"""Machine code of a library kernel, on arrays between guard pages."""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from support.machine_code import Guarded, array_over, extent

from csrun.compiler.emit.llvm.library import library_code
from csrun.compiler.emit.llvm.module import SharedCode, common_text, module_text
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.kernel import Kernel
from csrun.executable import machine_code
from csrun.executable.products import EXPORTED, Tile, tile_of


class LibraryCase:
    """Machine code of a kernel; other memory than the given values is NaN, or 1."""

    def __init__(
        self, kernel: Kernel, values: Mapping[str, np.ndarray], constants: Sequence[np.ndarray] = ()
    ) -> None:
        code = library_code(kernel, "kernel")
        assert code is not None, "it has machine code"
        assert code.rows is not None, "its rows are known"
        self.code, self.rows = code, code.rows
        assert len(constants) == len(code.constants)
        self._values, self._constants = values, constants
        text = module_text([SharedCode(code, "", [])])
        images = [machine_code.build(text)]
        if any(f"@{called}(" in code.text for called in EXPORTED):
            images.insert(0, _products(tile_of(machine_code.host())))
        self._machine = machine_code.MachineCode(images, EXPORTED)
        self._sizes: dict[str, int] = {}
        for array in code.parameters:
            self._sizes[array.name] = max(self._sizes.get(array.name, 0), extent(array))

    def run(
        self,
        *numbers: float,
        bounds: Sequence[int] | None = None,
        at_end: bool = True,
        backward: bool = False,
    ) -> dict[str, np.ndarray]:
        """Arrays after the call, by name, computed between these bounds of rows.

        backward: from the last rows to the first
        """
        code = self.code
        memory = {}
        for array in code.parameters:
            if array.name not in memory:
                memory[array.name] = self._filled(array, at_end)
        views = [array_over(memory[array.name].memory, array) for array in code.parameters]
        step = np.array([*numbers, 0.0])
        scratch, parts = Guarded(code.scratch_bytes, at_end), Guarded(code.parts_bytes, at_end)
        places = [*views, *self._constants, step, scratch.memory, parts.memory]
        addresses = (ctypes.c_void_p * len(places))(*(place.ctypes.data for place in places))
        argument = ctypes.addressof(addresses)
        run = self._machine.function("kernel", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        if code.begin_rows:
            begin = self._machine.function(
                "kernel.begin", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
            )
            begin(argument, 0, code.begin_rows)
        parts_of_rows = list(pairwise((0, self.rows) if bounds is None else bounds))
        for first, last in reversed(parts_of_rows) if backward else parts_of_rows:
            run(argument, first, last)
        if code.has_epilogue:
            self._machine.function("kernel.end", ctypes.c_void_p)(argument)
        return {a.name: view.copy() for a, view in zip(code.parameters, views, strict=True)}

    def in_all_ways(self, *numbers: float) -> dict[str, np.ndarray]:
        """Arrays after the call; bits must not depend on row bounds or guard pages."""
        found = self.run(*numbers)
        others = [self.run(*numbers, at_end=False)]
        for count in (2, 3, 8):
            step = -(-self.rows // (count * self.code.cut)) * self.code.cut
            bounds = [*range(0, self.rows, step), self.rows]
            others.append(self.run(*numbers, bounds=bounds, backward=count == 8))
        for other in others:
            for name, value in found.items():
                np.testing.assert_array_equal(other[name], value, err_msg=name)
        return found

    def _filled(self, array, at_end: bool) -> Guarded:
        size = self._sizes[array.name]
        given = self._values.get(array.name)
        whole = np.full(size, np.nan if "float" in array.dtype else 1, array.dtype)
        if given is not None:
            array_over(whole, array)[...] = np.reshape(given, array.shape)
        memory = Guarded(whole.nbytes, at_end)
        memory.memory[:] = whole.view(np.uint8)
        return memory


@cache
def _products(tile: Tile) -> bytes:
    return machine_code.build(common_text(tile))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, float32."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("float32")


def array(name: str, *shape: int, dtype: str = "float32") -> Array:
    """A contiguous array of a program."""
    return Array(name, shape, dtype)


def wide(*values: np.ndarray) -> list:
    """Tensors of float64."""
    import torch

    return [torch.from_numpy(np.asarray(value, "float64")) for value in values]
