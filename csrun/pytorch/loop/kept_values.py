"""What the loop has read, kept beside the checkpoints: a resumed script reads it again.

A script that goes on from step S runs its loop from the start, and steps up to S are not taken
again: they have the losses that they had, and what else was read of them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
import torch

from csrun.base import framing
from csrun.base.files import write_whole

FILE = "loop_values"


class Losses(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Of the loop's steps of these numbers, behind which so many `trained` ones are taken each."""

    steps: list[int]
    trained: list[int]
    values: list[float]


class Value(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Value `number` of the loop's step `step`, behind which `trained` steps are taken."""

    step: int
    number: int
    trained: int
    dtype: str
    shape: tuple[int, ...]
    data: bytes


Record = Losses | Value


class KeptValues:
    """The values of a run in its model_dir, as far as they are of its first `steps` steps."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._path = folder / FILE
        self._steps = steps
        self._file: IO[bytes] | None = None
        self._losses: dict[int, float] = {}
        self._values: dict[tuple[int, int], Value] = {}
        records = [r for r in self._read() if self._take(r)] if steps else []
        self._path.unlink(missing_ok=True)
        if records:
            write_whole(self._path, b"".join(map(_frame, records)))

    def _read(self) -> list[Record]:
        try:
            bodies, _ = framing.decode(self._path.read_bytes())
            return [msgspec.msgpack.decode(body, type=Record) for body in bodies]
        except (FileNotFoundError, framing.FrameError, msgspec.MsgspecError):
            return []

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
        """That of a step of the loop in an earlier run; None where it is not known."""
        return self._losses.get(step)

    def value(self, step: int, number: int) -> torch.Tensor | None:
        """What an earlier run has read of a step of the loop; None where it read nothing."""
        found = self._values.get((step, number))
        if found is None:
            return None
        array = np.frombuffer(bytearray(found.data), found.dtype).reshape(found.shape)
        return torch.from_numpy(array)

    def add_losses(
        self, steps: Sequence[int], trained: Sequence[int], losses: Sequence[float]
    ) -> None:
        """Keep those of the loop's steps of these numbers."""
        self._append(Losses(list(steps), list(trained), list(losses)))

    def add(self, step: int, number: int, trained: int, tensor: torch.Tensor) -> None:
        """Keep a value that is read; one that is kept already stays as it is."""
        if (step, number) in self._values:
            return
        array = tensor.detach().numpy()
        data = array.tobytes()
        if len(data) < framing.MAX_BODY_BYTES // 2:
            self._append(Value(step, number, trained, array.dtype.name, array.shape, data))

    def _append(self, record: Record) -> None:
        if self._file is None:
            self._file = self._path.open("ab", buffering=0)  # a killed run leaves what it has kept
        self._file.write(_frame(record))

    def close(self) -> None:
        """Have no file open; what is kept next opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _frame(record: Record) -> bytes:
    return framing.encode(msgspec.msgpack.encode(record))
