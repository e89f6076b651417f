"""Constant arrays: small ones as text, large ones by their digest."""

import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Data
from xdsl.irdl import BaseAttr, irdl_attr_definition, irdl_op_definition, prop_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from csrun.base.array_digests import digest_of
from csrun.cirh.ops.base import Plain
from csrun.cirh.ops.model import LeafOp
from csrun.cirh.types import dtype_of, shape_of, size_of, type_of

#: Larger arrays are in separate files, because their text would be many times their size.
MOST_TEXT_BYTES = 1 << 16

AnyArray = npt.NDArray[Any]


@dataclass(frozen=True)
class ArrayByDigest:
    """An array and its digest; None for the array of a module read from text."""

    digest: str
    array: AnyArray | None = field(compare=False, repr=False)

    @classmethod
    def of(cls, array: AnyArray) -> "ArrayByDigest":
        plain = np.ascontiguousarray(array)
        return cls(digest_of(plain), plain)


@irdl_attr_definition
class ArrayAttr(Data[ArrayByDigest]):
    """A large array; a module's text has its digest only."""

    name = "cirh.array"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> ArrayByDigest:
        with parser.in_angle_brackets():
            return ArrayByDigest(parser.parse_str_literal(), None)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(self.data.digest)


@irdl_op_definition
class ConstantOp(LeafOp):
    """A tensor of given values.

    values: base64 of their compressed (zlib) bytes, little-endian in row-major order; above
        MOST_TEXT_BYTES the array itself.
    """

    name = "cirh.constant"
    NEEDS_KERNEL: ClassVar = True
    values = prop_def(BaseAttr(StringAttr) | BaseAttr(ArrayAttr))
    FORM: ClassVar = "attr-dict `:` type($out)"

    @classmethod
    def packed(cls, values: AnyArray) -> Plain:
        """The property of an array's values."""
        if values.nbytes > MOST_TEXT_BYTES:
            return ArrayAttr(ArrayByDigest.of(values))
        return b64encode(zlib.compress(np.ascontiguousarray(values).tobytes())).decode()

    def array(self) -> AnyArray:
        """The values, of the declared type.

        Raises: ValueError for a large one of a module that was read from text
        """
        kind = type_of(self.out)
        if isinstance(self.values, StringAttr):
            raw = zlib.decompress(b64decode(self.values.data))
            return np.frombuffer(raw, dtype_of(kind)).reshape(shape_of(kind))
        if self.values.data.array is None:
            raise ValueError(f"the text of {self.name} in {self.where} has its digest only")
        return self.values.data.array

    def verify_(self) -> None:
        """Raises: VerifyException unless the number of values is that of the type"""
        kind = type_of(self.out)
        if isinstance(self.values, ArrayAttr):
            array = self.values.data.array
            found = size_of(kind) * np.dtype(dtype_of(kind)).itemsize
            found = found if array is None else array.nbytes
        else:
            found = self._text_bytes(self.values)
        if found != size_of(kind) * np.dtype(dtype_of(kind)).itemsize:
            raise VerifyException(
                f"{self.name} in {self.where}: values must fill {kind}, got {found} bytes"
            )

    def _text_bytes(self, values: StringAttr) -> int:
        try:
            return len(zlib.decompress(b64decode(values.data, validate=True)))
        except (ValueError, zlib.error) as error:
            raise VerifyException(f"{self.name} in {self.where}: values: {error}") from error


ATTRIBUTES: tuple[type[Attribute], ...] = (ArrayAttr,)
OPS = (ConstantOp,)
