"""TFRecord files of tf.train.Example messages, decoded to an array per feature."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from csrun.data.errors import DataError, require
from csrun.data.formats.base import Array, Sample, kind_of
from csrun.data.formats.file_reading import needed
from csrun.data.formats.tfrecord import Record, records, require_compression

PACKAGE = "csrun.tensorflow"  # the encoding of a message does not depend on its package
FIELD_LISTS = {"BytesList": "TYPE_BYTES", "FloatList": "TYPE_FLOAT", "Int64List": "TYPE_INT64"}
KINDS = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}


@lru_cache(maxsize=1)
def example_class() -> Any:
    """Return the class of tf.train.Example messages.

    Raises: DataError if protobuf is not installed
    """
    needed("google.protobuf", "TFExample", "tfrecord")
    from google.protobuf import descriptor_pool, message_factory

    # A pool of our own, as TensorFlow's may define the same messages.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.Example"))


def _file() -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name="csrun/example.proto", package=PACKAGE, syntax="proto3")
    for name, kind in FIELD_LISTS.items():
        _field(file.message_type.add(name=name), "value", 1, kind, "LABEL_REPEATED")
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, message) in enumerate(KINDS.items(), 1):
        _message_field(feature, name, number, message).oneof_index = 0
    _add_features(file.message_type.add(name="Features"))
    _message_field(file.message_type.add(name="Example"), "features", 1, "Features")
    return file


def _add_features(features: Any) -> None:
    """Add `map<string, Feature> feature = 1`, a repeated message of a key and a value."""
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, "TYPE_STRING")
    _message_field(entry, "value", 2, "Feature")
    _message_field(features, "feature", 1, "Features.FeatureEntry", "LABEL_REPEATED")


def _message_field(
    message: Any, name: str, number: int, of: str, label: str = "LABEL_OPTIONAL"
) -> Any:
    field = _field(message, name, number, "TYPE_MESSAGE", label)
    field.type_name = f".{PACKAGE}.{of}"
    return field


def _field(message: Any, name: str, number: int, kind: str, label: str = "LABEL_OPTIONAL") -> Any:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return message.field.add(
        name=name,
        number=number,
        type=FieldDescriptorProto.Type.Value(kind),
        label=FieldDescriptorProto.Label.Value(label),
    )


BYTES = "bytes"
LISTS = {"i": "int64_list", "u": "int64_list", "b": "int64_list", "f": "float_list"}


@dataclass(frozen=True)
class Fixed:
    """Feature of fixed shape.

    dtype: integer, float, `bool`, or `bytes` (one value, as a uint8 vector). default: values of a
    record without the feature; None makes that an error.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    default: Any = None

    def __post_init__(self) -> None:
        _list_of(self.dtype)
        sensible = all(extent >= 0 for extent in self.shape)
        require(sensible, "Fixed", "shape must not be negative", self.shape)
        single = self.dtype != BYTES or self.shape == ()
        require(single, "Fixed", "shape must be () for bytes", self.shape)
        if self.default is not None:
            self._check_default()

    @property
    def described(self) -> str:
        """Description in an error."""
        return f"{self.dtype} of shape {list(self.shape)}"

    def array(self, values: Any) -> Array:
        """Decode the values of a record.

        Raises: ValueError, OverflowError for values that do not fit shape or dtype
        """
        if self.dtype == BYTES:
            (value,) = values
            return np.frombuffer(value, np.uint8)
        return _numbers(values, self.dtype).reshape(self.shape)

    def missing(self) -> Array | None:
        """Array of a record without the feature; None if it is required."""
        if self.default is None:
            return None
        if self.dtype == BYTES:
            return np.frombuffer(self.default, np.uint8)
        return np.broadcast_to(np.asarray(self.default, self.dtype), self.shape)

    def _check_default(self) -> None:
        try:
            self.missing()
        except (TypeError, ValueError, OverflowError) as error:
            rule = f"default must be {self.described}"
            raise DataError(f"Fixed: {rule}, got {self.default!r}") from error


@dataclass(frozen=True)
class Variable:
    """Feature of variable length: a vector, empty in a record without the feature.

    Batch it with `padded_shapes`. dtype: integer, float or `bool`.
    """

    dtype: str

    def __post_init__(self) -> None:
        rule = "a list of bytes is not an array: use Fixed, or TFRecord and a map"
        require(_list_of(self.dtype) != "bytes_list", "Variable", rule, self.dtype)

    @property
    def described(self) -> str:
        """Description in an error."""
        return f"a list of {self.dtype}"

    def array(self, values: Any) -> Array:
        """Decode the values of a record.

        Raises: OverflowError for values that do not fit the dtype
        """
        return _numbers(values, self.dtype)

    def missing(self) -> Array | None:
        """Array of a record without the feature."""
        return np.empty(0, self.dtype)


@dataclass(frozen=True)
class TFExample:
    """Features of the tf.train.Example messages of a TFRecord file.

    features: Fixed or Variable by name, e.g. {"image": Fixed("bytes"), "label": Fixed("int32")}.
    compression: as in TFRecord.
    """

    features: Mapping[str, Fixed | Variable]
    compression: str | None = None

    def __post_init__(self) -> None:
        require_compression("TFExample", self.compression)
        require(bool(self.features), "TFExample", "features must name at least one", "none")
        for name, feature in self.features.items():
            known = isinstance(feature, Fixed | Variable)
            require(known, "TFExample", f"{name} must be a Fixed or a Variable", feature)

    def samples(self, path: Path) -> Iterator[Sample]:
        """Yield an array per feature, in the order of `features`.

        Raises: DataError naming file, record and feature of a mismatch
        """
        parse = partial(_parsed, path, example_class().FromString)
        for record in records(path, self.compression):
            found = parse(record).features.feature
            where = f"{path}: record {record.number} at byte {record.offset}"
            yield tuple(
                _value(f"{where}: feature {name}", feature, found.get(name))
                for name, feature in self.features.items()
            )


def _list_of(dtype: str) -> str:
    """Return the list of the message that has the values of a dtype."""
    if dtype == BYTES:
        return "bytes_list"
    found = LISTS.get(kind_of(dtype))
    require(found is not None, "TFExample", "dtype must be numeric, bool or bytes", dtype)
    return str(found)


def _numbers(values: Any, dtype: str) -> Array:
    wide = np.array(values, np.int64 if _list_of(dtype) == "int64_list" else np.float32)
    array = wide.astype(dtype)
    if wide.dtype.kind == "i" and not np.array_equal(wide, array):
        raise OverflowError(f"a value does not fit {dtype}")
    return array


def _parsed(path: Path, parse: Callable[[bytes], Any], record: Record) -> Any:
    try:
        return parse(record.content)
    except Exception as error:  # protobuf's DecodeError; protobuf may not be installed
        raise DataError(
            f"{path}: record {record.number} at byte {record.offset}: not a tf.train.Example "
            f"message: {error}"
        ) from error


def _value(where: str, feature: Fixed | Variable, found: Any) -> Array:
    kind = found.WhichOneof("kind") if found is not None else None
    if kind is None:
        value = feature.missing()
        require(
            value is not None,
            where,
            "must be in the record, or have a default",
            "none",
        )
        assert value is not None
        return value
    wanted = _list_of(feature.dtype)
    require(kind == wanted, where, f"must be {wanted} for {feature.dtype}", kind)
    values = getattr(found, kind).value
    try:
        return feature.array(values)
    except (ValueError, OverflowError) as error:
        rule = f"must be {feature.described}"
        raise DataError(f"{where}: {rule}, got {len(values)} values: {error}") from error
