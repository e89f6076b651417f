"""Log of the values that a loop has read, next to the checkpoints.

A resumed script runs its loop from the start. Steps up to the checkpoint are replayed: their
losses, and other values that the loop reads, come from this log.
"""

import errno
import os
import struct
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np
import torch

from csrun.base import framing
from csrun.base.errors import CsrunError
from csrun.base.files import create_new, find, open_regular, writing
from csrun.base.stored import UNREADABLE

FILE = "loop_values"
MOST_BYTES = 4 << 30  # values that a loop would read in thousands of steps
_CHECKSUM = struct.Struct(">I")


class Losses(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Losses of these steps. trained: number of training steps after each."""

    steps: list[int]
    trained: list[int]
    values: list[float]


class Value(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Value `number` of step `step`. trained: number of training steps after it."""

    step: int
    number: int
    trained: int
    dtype: str
    shape: tuple[int, ...]
    data: bytes


Record = Losses | Value


class ValueLog:
    """Log of a run in its model_dir, truncated to its first `steps` training steps.

    Each record has a checksum. A truncated end, as left by a killed run, is accepted; any other
    mismatch is damage.

    Raises: CsrunError for a file that is damaged, or that cannot be read or written
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self._path = folder / FILE
        self._steps = steps
        self._file: FileIO | None = None
        # our own file: another file of its name is not written
        self._made: os.stat_result | None = None
        self._losses: dict[int, float] = {}
        self._values: dict[tuple[int, int], Value] = {}
        records = [r for r in self._read() if self._take(r)] if steps else []
        with writing(self._path):
            self._path.unlink(missing_ok=True)
            for record in records:
                self._write(record)
            self.close()

    def _read(self) -> list[Record]:
        try:
            data = find(self._path, MOST_BYTES, follow=False).data
            bodies, _ = framing.decode(data)
            return list(map(_record, bodies))
        except FileNotFoundError:
            return []
        except framing.FrameError as error:
            raise self._unreadable(f"is damaged: {error}") from error
        except OSError as error:
            raise self._unreadable(f"cannot be read: {error.strerror}") from error

    def _unreadable(self, why: str) -> CsrunError:
        return CsrunError(
            f"{self._path}: the log of values that the loop has read {why}; begin in a new "
            "model_dir, or remove the file if the loop does not use values of earlier steps"
        )

    def _take(self, record: Record) -> bool:
        if isinstance(record, Value):
            if record.trained <= self._steps:
                self._values[record.step, record.number] = record
            return record.trained <= self._steps
        for step, trained, loss in zip(record.steps, record.trained, record.values, strict=True):
            if trained <= self._steps:
                self._losses[step] = loss
        return min(record.trained, default=0) <= self._steps

    def loss(self, step: int) -> float | None:
        """Return the loss of a step in an earlier run, None if unknown."""
        return self._losses.get(step)

    def value(self, step: int, number: int) -> torch.Tensor | None:
        """Return a value that an earlier run has read of a step, or None."""
        found = self._values.get((step, number))
        if found is None:
            return None
        array = np.frombuffer(bytearray(found.data), found.dtype).reshape(found.shape)
        return torch.from_numpy(array)

    def add_losses(
        self, steps: Sequence[int], trained: Sequence[int], losses: Sequence[float]
    ) -> None:
        """Append the losses of these steps."""
        self._append(Losses(list(steps), list(trained), list(losses)))

    def add(self, step: int, number: int, trained: int, tensor: torch.Tensor) -> None:
        """Append a value that is read, unless it is logged already."""
        if (step, number) in self._values:
            return
        array = tensor.detach().numpy()
        data = array.tobytes()
        if len(data) < framing.MAX_BODY_BYTES // 2:
            self._append(Value(step, number, trained, array.dtype.name, array.shape, data))

    def _append(self, record: Record) -> None:
        with writing(self._path):
            self._write(record)

    def _write(self, record: Record) -> None:
        if self._file is None:
            self._file = FileIO(self._descriptor(), "ab")
        self._file.write(_frame(record))  # unbuffered: a killed run leaves what it has logged

    def _descriptor(self) -> int:
        """Return a descriptor of the file, which the first call creates.

        Raises: OSError if the name is used by something else
        """
        if self._made is None:
            descriptor = create_new(self._path)
            self._made = os.fstat(descriptor)
            return descriptor
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = open_regular(self._path, flags)
        if os.path.samestat(os.fstat(descriptor), self._made):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.EEXIST, "another file has taken its name", str(self._path))

    def close(self) -> None:
        """Close the file; the next record opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _frame(record: Record) -> bytes:
    packed = msgspec.msgpack.encode(record)
    return framing.encode(_CHECKSUM.pack(crc32(packed)) + packed)


def _record(body: bytes) -> Record:
    """Return the record of a frame. Raises: FrameError"""
    packed = body[_CHECKSUM.size :]
    if body[: _CHECKSUM.size] != _CHECKSUM.pack(crc32(packed)):
        raise framing.FrameError("a record does not match its checksum")
    try:
        record: Record = msgspec.msgpack.decode(packed, type=Record)
    except UNREADABLE as error:
        raise framing.FrameError(f"a record is not readable: {error}") from error
    return record
