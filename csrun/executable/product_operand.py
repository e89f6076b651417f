"""Operand of a matrix product: an array's address, type, shape and strides."""

from dataclasses import dataclass

from csrun.base.half_formats import WORD
from csrun.executable.arrays import Array


@dataclass(frozen=True)
class ProductOperand:
    """An array of a product; strides in elements."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: Array) -> "ProductOperand":
        """The operand that an array is."""
        strides = tuple(stride // array.itemsize for stride in array.strides)
        return cls(array.ctypes.data, array.dtype.name, array.shape, strides)

    @property
    def span(self) -> tuple[int, int]:
        """Addresses of the first byte and after the last one."""
        ends = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = (sum(e for e in ends if (e < 0) == is_low) for is_low in (True, False))
        return self.address + self.size * low, self.address + self.size * (high + 1)

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return 2 if self.dtype == WORD else 4

    @property
    def is_distinct(self) -> bool:
        """Return whether each element has a place of its own."""
        last = 0
        for stride, n in sorted((abs(s), n) for n, s in zip(self.shape, self.strides, strict=True)):
            if n > 1 and stride <= last:
                return False
            last += (n - 1) * stride
        return True
