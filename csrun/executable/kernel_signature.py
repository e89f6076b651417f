"""Arguments of kernels in machine code, as recorded in the manifest of a compile."""

import msgspec
import numpy as np

from csrun.executable.arrays import Array
from csrun.executable.bfloat16 import Instructions


class KernelArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Array argument of machine code; `argument` is its index in the program's function.

    is_input: passed with each call; otherwise the function is bound to it once.
    shape: None for a flat array of any length.
    strides: in elements.
    """

    argument: int
    is_input: bool
    dtype: str
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    def fits(self, array: Array) -> bool:
        """Return whether an array has the layout that the machine code expects."""
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
        """Return a copy in the layout that the machine code expects."""
        assert self.shape is not None, "inputs are not flat"
        assert self.strides is not None, "inputs are not flat"
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        whole = np.empty(last + 1, self.dtype)
        steps = tuple(stride * whole.itemsize for stride in self.strides)
        copy = np.lib.stride_tricks.as_strided(whole, self.shape, steps)
        copy[...] = array
        return copy


class KernelSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of a kernel's machine code, the function of this name.

    rows: number of rows; None: those of the first array.
    inputs, numbers: how many each call passes.
    texts: expressions of numbers that are computed from the step.
    constants: arrays that the NumPy form creates; they follow those of the program.
    cut: rows that must stay together when threads share a call.
    begin_rows: rows of the function `<function>.begin`, which is called before; 0 without one.
    """

    function: str
    arrays: tuple[KernelArray, ...]
    rows: int | None
    inputs: int
    numbers: int
    texts: tuple[str, ...] = ()
    constants: int = 0
    scratch_bytes: int = 0
    parts_bytes: int = 0
    cut: int = 1
    has_epilogue: bool = False
    begin_rows: int = 0


class ProductSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arrays of a matrix product out = a b, or out += a b.

    in_pairs: a and b are numbers of bfloat16, which the manifest's instructions multiply
    """

    a: KernelArray
    b: KernelArray
    out: KernelArray
    adds: bool = False
    in_pairs: bool = False


class KernelManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Machine code in the manifest of a compile.

    target: the CPU that its object is for. instructions: those of products in pairs
    """

    target: str
    kernels: dict[str, KernelSignature]
    products: dict[str, ProductSignature]
    instructions: Instructions | None = None

    @property
    def in_pairs(self) -> list[str]:
        """Names of the products by these instructions."""
        return [name for name, product in self.products.items() if product.in_pairs]
