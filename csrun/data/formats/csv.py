"""CSV files: one sample per record, with a dtype per column."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from csrun.data.errors import DataError, require
from csrun.data.formats.base import NUMBERS, Array, Sample, kind_of
from csrun.data.formats.lines import require_line_encoding, text_lines

TEXT = "str"

Column = str | int


@dataclass(frozen=True)
class Csv:
    """Records of a CSV file, also gzipped; empty lines are skipped.

    columns: dtype by column, e.g. {("x", "y"): "float32", "label": "int32"}. The name of a column,
    or its index in a file without a header, yields a scalar; a tuple or range of them a vector; the
    dtype `str` the uint8 vector of the text in UTF-8. None reads all columns as a float32 vector.
    """

    columns: Mapping[Any, str] | None = None
    header: bool = True
    delimiter: str = ","
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        require_line_encoding("Csv", self.encoding)
        one = len(self.delimiter) == 1 and self.delimiter not in '\r\n"'
        require(one, "Csv", "delimiter must be one character", repr(self.delimiter))
        require(self.columns != {}, "Csv", "columns must name at least one column", "none")
        for key, dtype in (self.columns or {}).items():
            self._check(key, dtype)

    def samples(self, path: Path) -> Iterator[Sample]:
        """Yield a tuple per record, in the order of `columns`.

        Raises: DataError naming file and line of a record with another number of fields, or a
        field that is not a number
        """
        reader = csv.reader(text_lines(path, self.encoding), delimiter=self.delimiter, strict=True)
        try:
            yield from self._records(path, reader)
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: not a CSV record: {error}") from error

    def _records(self, path: Path, reader: Any) -> Iterator[Sample]:
        records = filter(None, reader)
        first = next(records, None)
        if first is None:
            return
        parts = self._parts(path, first)
        if not self.header:
            yield _sample(f"{path}:{reader.line_num}", parts, first)
        for record in records:
            where = f"{path}:{reader.line_num}"
            require(len(record) == len(first), where, f"must have {len(first)} fields", len(record))
            yield _sample(where, parts, record)

    def _parts(self, path: Path, first: Sequence[str]) -> "list[_ColumnGroup]":
        """Map the fields of a record to arrays."""
        names: Sequence[Column] = first if self.header else range(len(first))
        where = f"{path}:1"
        require(len(set(names)) == len(names), where, "names must differ", list(names))
        parts = []
        for key, dtype in (self.columns or {tuple(names): "float32"}).items():
            for name in _listed(key):
                require(name in names, where, f"must have a column {name}", list(names))
            chosen = tuple(names.index(name) for name in _listed(key))
            parts.append(_ColumnGroup(_listed(key), chosen, dtype, _is_single(key)))
        return parts

    def _check(self, key: Any, dtype: str) -> None:
        columns, wanted = _listed(key), str if self.header else int
        rule = f"columns must be {wanted.__name__} {'with' if self.header else 'without'} a header"
        named = bool(columns) and all(isinstance(column, wanted) for column in columns)
        require(named, "Csv", rule, repr(key))
        if dtype == TEXT:
            require(_is_single(key), "Csv", "a vector must be numeric, not str", repr(key))
            return
        rule = f"the dtype of {key} must be integer, float or str"
        require(kind_of(dtype) in NUMBERS, "Csv", rule, dtype)


@dataclass(frozen=True)
class _ColumnGroup:
    """Fields that form one array."""

    names: tuple[Column, ...]
    fields: tuple[int, ...]
    dtype: str
    single: bool

    def array(self, where: str, record: Sequence[str]) -> Array:
        texts = [record[field] for field in self.fields]
        if self.dtype == TEXT:
            return np.frombuffer(texts[0].encode(), np.uint8)
        try:
            return np.array(texts[0] if self.single else texts, self.dtype)
        except (ValueError, OverflowError) as error:
            raise DataError(f"{where}: {self._fault(texts)}") from error

    def _fault(self, texts: Sequence[str]) -> str:
        """Describe the field that is not a number."""
        for name, text in zip(self.names, texts, strict=True):
            try:
                np.dtype(self.dtype).type(text)
            except (ValueError, OverflowError):
                return f"column {name} must be {self.dtype}, got {text!r}"
        return f"columns {list(self.names)} must be {self.dtype}"


def _sample(where: str, parts: Sequence[_ColumnGroup], record: Sequence[str]) -> Sample:
    return tuple(part.array(where, record) for part in parts)


def _is_single(key: Any) -> bool:
    return isinstance(key, str | int)


def _listed(key: Any) -> tuple[Column, ...]:
    return (key,) if _is_single(key) else tuple(key)
