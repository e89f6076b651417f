"""Functions of program.py for kernels of LAIR: each once, in NumPy and, if possible, in LLVM IR."""

from collections.abc import Iterable

from csrun.compiler.emit.llvm.module import KernelCode, kernel_code, module_text
from csrun.compiler.graph.array import Array
from csrun.compiler.lair.dialect import print_kernels
from csrun.compiler.lair.loop import KernelLoop
from csrun.executable.kernel_code import KernelArray, KernelFiles, KernelSignature


class KernelFunctions:
    """The functions of a program's loops, by name."""

    def __init__(self, loops: Iterable[KernelLoop]) -> None:
        self._loops: dict[str, KernelLoop] = {}
        for loop in loops:
            first = self._loops.setdefault(loop.function.name, loop).function
            assert first.computed == loop.function.computed, "two kernels have one name"

    def __len__(self) -> int:
        return len(self._loops)

    def lines(self) -> list[str]:
        """Their text."""
        return [line for each in self._loops.values() for line in (*each.function.lines(), "", "")]

    def kernel_files(self) -> KernelFiles | None:
        """The machine code of those that have such a form; None where none has."""
        codes = {}
        for name, loop in self._loops.items():
            if (code := kernel_code(loop.op, loop.writes, name)) is not None:
                codes[name] = code
        if not codes:
            return None
        sources = {name: print_kernels([self._loops[name].op]) for name in codes}
        text = module_text({name: (code, sources[name]) for name, code in codes.items()})
        signatures = {name: _signature(self._loops[name], code) for name, code in codes.items()}
        return KernelFiles.build(text, signatures)


def _signature(loop: KernelLoop, code: KernelCode) -> KernelSignature:
    """Arguments of the machine code of a function."""
    function = loop.function
    return KernelSignature(
        tuple(_array(loop, array) for array in code.parameters),
        None if function.is_flat else max(loop.rows, 1),
        len(function.inputs),
        len(function.numbers),
        code.scratch_bytes,
        code.parts_bytes,
        code.cut,
        code.has_end,
    )


def _array(loop: KernelLoop, array: Array) -> KernelArray:
    function = loop.function
    is_input = array in function.inputs
    place = (function.inputs if is_input else function.parameters).index(array)
    layout = () if function.is_flat else (array.shape, array.strides)
    return KernelArray(place, is_input, array.dtype, *layout)
