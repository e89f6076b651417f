"""Machine code of a program's kernels: its files in the compile directory, and how it is called.

`kernels.ll` is LLVM IR; `kernels.o` is built from it for the CPU in the manifest. On another CPU,
or if the file is damaged, the object is built again; without llvmlite the program's NumPy functions
run.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_double, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from csrun.executable import machine_code
from csrun.executable.bind import ALIGNMENT_BYTES, Array
from csrun.executable.machine_code import MachineCode

IR_FILE, OBJECT_FILE = "kernels.ll", "kernels.o"
NUMPY, LLVM = "numpy", "llvm"  # forms of kernels

log = logging.getLogger("csrun")


class KernelArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array that machine code works on: which argument of the program's function it is.

    is_input: an argument of each call, else the function is bound to it. strides: in elements.
    Without a shape it is flat, and as long as it comes.
    """

    argument: int
    is_input: bool
    dtype: str
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    def fits(self, array: Array) -> bool:
        """Return whether an array lies as the machine code expects."""
        if self.shape is None:
            return array.ndim == 1 and array.flags.c_contiguous and array.dtype == self.dtype
        return (
            array.shape == self.shape
            and array.dtype == self.dtype
            and all(
                n == 1 or own == stride * array.itemsize
                for n, own, stride in zip(
                    array.shape, array.strides, self.strides or (), strict=True
                )
            )
        )

    def copied(self, array: Array) -> Array:
        """A copy that lies as the machine code expects."""
        assert self.shape is not None, "inputs are not flat"
        assert self.strides is not None, "inputs are not flat"
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        whole = np.empty(last + 1, self.dtype)
        steps = tuple(stride * whole.itemsize for stride in self.strides)
        copy = np.lib.stride_tricks.as_strided(whole, self.shape, steps)
        copy[...] = array
        return copy


class KernelSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of a kernel's machine code.

    rows: None for as many as the first array has. inputs, numbers: how many come with each call.
    cut: rows that stay together where several threads share a call.
    """

    arrays: tuple[KernelArray, ...]
    rows: int | None
    inputs: int
    numbers: int
    scratch_bytes: int = 0
    parts_bytes: int = 0
    cut: int = 1
    has_end: bool = False


class KernelManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Machine code in the manifest of a compile; target: the CPU that its object is for."""

    target: str
    kernels: dict[str, KernelSignature]


@dataclass(frozen=True)
class KernelFiles:
    """Machine code of a compile: its signatures, its IR, and its object unless that is damaged."""

    manifest: KernelManifest
    text: str
    image: bytes | None

    @classmethod
    def build(cls, text: str, kernels: Mapping[str, KernelSignature]) -> "KernelFiles":
        """Build the object for this host."""
        manifest = KernelManifest(machine_code.host(), dict(kernels))
        return cls(manifest, text, machine_code.build(text))

    @property
    def files(self) -> dict[str, str | bytes]:
        """Contents of the files, by name."""
        assert self.image is not None, "it was built"
        return {IR_FILE: self.text, OBJECT_FILE: self.image}

    def replace_functions(self, namespace: dict[str, Any], directory: Path) -> None:
        """Put machine code in the place of a program's NumPy functions, if this host can run it."""
        if not machine_code.is_supported():
            _log_once(f"{directory}: kernels run in NumPy: {machine_code.missing()}")
            return
        code = self._loaded(directory)
        for name, signature in self.manifest.kernels.items():
            namespace[name] = _Binder(code, name, signature, namespace[name])

    def _loaded(self, directory: Path) -> MachineCode:
        image, why = self.image, "damaged"
        if image is not None and self.manifest.target != machine_code.host():
            image, why = None, "for another CPU"
        if image is not None:
            return _load(image)
        _log_once(f"{directory / OBJECT_FILE}: {why}, built again for this process")
        return _load(_build(self.text))


@lru_cache(maxsize=8)
def _load(image: bytes) -> MachineCode:
    return MachineCode(image)


@lru_cache(maxsize=8)
def _build(text: str) -> bytes:
    return machine_code.build(text)


@lru_cache(maxsize=64)
def _log_once(text: str) -> None:
    log.info(text)


@dataclass(frozen=True)
class _Binder:
    """A function of the program in machine code; of arrays that lie otherwise, that of NumPy."""

    code: MachineCode
    name: str
    signature: KernelSignature
    numpy_form: Callable[..., Callable[..., None]]

    def __call__(self, *arrays: Array) -> Callable[..., None]:
        """Bind arrays, and return what a step calls."""
        bound = [each for each in self.signature.arrays if not each.is_input]
        if not all(each.fits(arrays[each.argument]) for each in bound):
            return self.numpy_form(*arrays)
        return _BoundKernel(self.code, self.name, self.signature, arrays)


class _BoundKernel:
    """A kernel over arrays: called with the inputs of a batch and the numbers of a step."""

    def __init__(
        self, code: MachineCode, name: str, signature: KernelSignature, arrays: Sequence[Array]
    ) -> None:
        own = [None if a.is_input else arrays[a.argument] for a in signature.arrays]
        scratch, parts = _empty(signature.scratch_bytes), _empty(signature.parts_bytes)
        self._count = signature.inputs
        self._inputs = [(n, a) for n, a in enumerate(signature.arrays) if a.is_input]
        self._numbers = (c_double * max(signature.numbers, 1))()
        addresses = [
            *(0 if a is None else a.ctypes.data for a in own),
            addressof(self._numbers),
            scratch.ctypes.data,
            parts.ctypes.data,
        ]
        self._arguments = (c_void_p * len(addresses))(*addresses)
        self._place = addressof(self._arguments)
        self._rows = signature.rows if signature.rows is not None else len(arrays[0])
        self._run = code.function(name, c_void_p, c_int64, c_int64)
        self._end = code.function(f"{name}.end", c_void_p) if signature.has_end else None
        self._memory = (code, own, scratch, parts)  # which the functions point to

    def __call__(self, *values: Any) -> None:
        """Compute all rows."""
        inputs = [
            own if array.fits(own := values[array.argument]) else array.copied(own)
            for _, array in self._inputs
        ]
        for (place, _), own in zip(self._inputs, inputs, strict=True):
            self._arguments[place] = own.ctypes.data
        self._numbers[: len(values) - self._count] = list(values[self._count :])
        self._run(self._place, 0, self._rows)
        if self._end is not None:
            self._end(self._place)


def _empty(nbytes: int) -> Array:
    """Aligned memory."""
    whole = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT_BYTES
    return whole[start : start + nbytes]
