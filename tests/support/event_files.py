"""Events of TensorBoard's files by protobuf's reader, without PyTorch."""

from collections.abc import Iterator
from pathlib import Path

from csrun.records.events import hide_package

with hide_package("torch"):  # its import takes ten times as long as all else that a job's tests do
    from tensorboardX.proto.event_pb2 import Event


def events(path: Path) -> Iterator[Event]:
    """The events of a file, a killed writer's too.

    Source: TensorFlow, lib/io/record_writer.h: length, its checksum, data, their checksum
    """
    content, at = path.read_bytes(), 0
    while at + 12 <= len(content):
        length = int.from_bytes(content[at : at + 8], "little")
        if at + 12 + length + 4 > len(content):
            return
        yield Event.FromString(content[at + 12 : at + 12 + length])
        at += 12 + length + 4
