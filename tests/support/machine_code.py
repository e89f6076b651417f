"""A LAIR kernel in both forms, on arrays that end, or begin, at a guard page."""

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from csrun.compiler.emit.llvm.module import SharedCode, kernel_code, module_text
from csrun.compiler.graph.array import Array
from csrun.compiler.lair.dialect import print_kernels
from csrun.compiler.lair.loop import KernelLoop
from csrun.executable import machine_code, row_tiles
from csrun.kernels import special

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Memory between two inaccessible pages; `at_end`: it ends at the second one."""

    def __init__(self, nbytes: int, at_end: bool) -> None:
        pages = max(-(-nbytes // PAGE), 1)
        self._map = mmap.mmap(-1, (pages + 2) * PAGE)
        whole = np.frombuffer(self._map, np.uint8)
        self._address = whole.ctypes.data
        for place in (0, pages + 1):
            self._protect(place, mmap.PROT_READ & 0)
        start = PAGE * (pages + 1) - nbytes if at_end else PAGE
        self.memory = whole[start : start + nbytes]

    def _protect(self, page: int, how: int) -> None:
        address = ctypes.c_void_p(self._address + page * PAGE)
        assert not _LIBC.mprotect(address, ctypes.c_size_t(PAGE), how)


def array_over(memory: np.ndarray, array: Array) -> np.ndarray:
    """View of an array of a program, whose base is in the memory."""
    base = memory.view(array.dtype)[array.offset :]
    steps = tuple(stride * base.itemsize for stride in array.strides)
    return np.lib.stride_tricks.as_strided(base, array.shape, steps)


def extent(array: Array) -> int:
    """Elements from the start of the base to the end of a view."""
    last = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))
    return array.offset + last + 1


class KernelCase:
    """Both forms of a loop, on arrays of its program by name of their bases.

    elements: size of each array of a loop over flat arrays
    """

    def __init__(
        self,
        loop: KernelLoop,
        values: Mapping[str, np.ndarray] | None = None,
        elements: int = 1,
    ) -> None:
        self.loop = loop
        self._elements = elements
        self.function = loop.function
        own = {array.name for array in loop.scratch}
        self.arrays = [
            a for a in (*self.function.parameters, *self.function.inputs) if a.name not in own
        ]
        self._scratch = [a for a in self.function.parameters if a.name in own]
        sizes: dict[str, int] = {}
        self._dtypes = {array.name: array.dtype for array in self.arrays}
        for array in self.arrays:
            size = elements if self.function.is_flat else extent(array)
            sizes[array.name] = max(sizes.get(array.name, 0), size)
        random = np.random.default_rng(5)
        self.values = {name: _random(random, n, self._dtypes[name]) for name, n in sizes.items()}
        for name, value in (values or {}).items():
            self.values[name] = np.ravel(value).astype(self._dtypes[name])
        self.code = kernel_code(loop.op, loop.writes, "kernel")
        if self.code is not None:
            text = module_text([SharedCode(self.code, print_kernels([loop.op]), [])])
            self.machine = machine_code.MachineCode([machine_code.build(text)])

    def by_numpy(self, *numbers: float) -> dict[str, np.ndarray]:
        """The bases after the NumPy form."""
        bases = {name: value.copy() for name, value in self.values.items()}
        scope = {**vars(np), "np": np, "row_tiles": row_tiles, "special": special}
        scope |= {"add_reduce": np.add.reduce, "maximum_reduce": np.maximum.reduce}
        exec("\n".join(self.function.lines()), scope)
        scratch = {a: np.zeros(a.shape, a.dtype) for a in self._scratch}
        view = lambda a: scratch[a] if a in scratch else self._over(bases[a.name], a)  # noqa: E731
        run = scope[self.function.name](*map(view, self.function.parameters))
        run(*map(view, self.function.inputs), *numbers)
        return bases

    def by_machine_code(
        self, *numbers: float, bounds: Sequence[int] | None = None, at_end: bool = True
    ) -> dict[str, np.ndarray]:
        """The bases after machine code, computed between these bounds of rows, part by part."""
        code = self.code
        assert code is not None, "it has machine code"
        memory = {n: Guarded(value.nbytes, at_end) for n, value in self.values.items()}
        for name, value in self.values.items():
            memory[name].memory[:] = value.view(np.uint8)
        own = [self._over(memory[a.name].memory, a) for a in code.parameters]
        step = np.array([*numbers, 0.0])
        scratch = Guarded(code.scratch_bytes, at_end)
        parts = Guarded(code.parts_bytes, at_end)
        places = [*own, step, scratch.memory, parts.memory]
        addresses = (ctypes.c_void_p * len(places))(*(place.ctypes.data for place in places))
        argument = ctypes.addressof(addresses)
        types = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
        run = self.machine.function("kernel", *types)
        rows = self._elements if self.function.is_flat else max(self.loop.rows, 1)
        bounds = (0, rows) if bounds is None else bounds
        for first, last in pairwise(bounds):
            run(argument, first, last)
        if code.has_epilogue:
            self.machine.function("kernel.end", ctypes.c_void_p)(argument)
        return {
            name: memory[name].memory.view(value.dtype).copy()
            for name, value in self.values.items()
        }

    def _over(self, memory: np.ndarray, array: Array) -> np.ndarray:
        return memory.view(array.dtype) if self.function.is_flat else array_over(memory, array)


def _random(random: np.random.Generator, size: int, dtype: str) -> np.ndarray:
    if dtype == "bool":
        return random.random(size) < 0.5
    if dtype.startswith("int"):
        return random.integers(0, 3, size).astype(dtype)
    return random.standard_normal(size).astype(dtype)
