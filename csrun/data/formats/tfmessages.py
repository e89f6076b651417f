"""The protobuf messages of tf.train.Example, described in code.

Source: TensorFlow, tensorflow/core/example/example.proto and feature.proto
"""

from functools import lru_cache
from typing import Any

from csrun.data.formats.files import needed

PACKAGE = "csrun.tensorflow"  # the bytes of a message do not tell its package
LISTS = {"BytesList": "TYPE_BYTES", "FloatList": "TYPE_FLOAT", "Int64List": "TYPE_INT64"}
KINDS = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}


@lru_cache(maxsize=1)
def example_class() -> Any:
    """The class of tf.train.Example messages.

    Raises: DataError when protobuf is not installed
    """
    needed("google.protobuf", "TFExample", "tfrecord")
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()  # of its own: TensorFlow's may hold the same messages
    pool.Add(_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.Example"))


def _file() -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name="csrun/example.proto", package=PACKAGE, syntax="proto3")
    for name, kind in LISTS.items():
        _field(file.message_type.add(name=name), "value", 1, kind, "LABEL_REPEATED")
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, message) in enumerate(KINDS.items(), 1):
        _message_field(feature, name, number, message).oneof_index = 0
    _add_features(file.message_type.add(name="Features"))
    _message_field(file.message_type.add(name="Example"), "features", 1, "Features")
    return file


def _add_features(features: Any) -> None:
    """`map<string, Feature> feature = 1`: a repeated message of a key and a value."""
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
