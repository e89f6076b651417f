"""Spans of time of the steps that are traced, in a ring that each process makes beforehand.

What a span costs is a look at the clock and a row of numbers, and of steps that are not traced a
comparison. The chief has the rings of its machine mapped, so that what a process did last is there
when it was killed; for those of other machines it asks when the last step is done.
"""

from collections.abc import Iterator
from contextlib import closing
from enum import IntEnum
from time import perf_counter_ns, time_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.executable.arrays import Bytes
from csrun.executable.bind import NO_LAYER
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import TraceRing
from csrun.runtime.wire.shared import SharedMemory
from csrun.runtime.wire.tcp import TcpChannel

Spans = npt.NDArray[np.int64]

COLUMNS = 5  # kind, program, number, its begin and end in nanoseconds
ROWS = 1 << 15  # of a ring
ROW_BYTES = 8 * COLUMNS
RING_BYTES = (1 + ROWS) * ROW_BYTES  # before the rows there is one that begins with their count
PART_ROWS = 1 << 10  # of a message, which is allowed more


class SpanKind(IntEnum):
    """Activity of a process; each kind is a track. Its number is of a step or as said."""

    INPUT = 0
    WEIGHTS = 1  # number: of the visit
    COMPUTE = 2  # number: of the visit
    GRADIENTS = 3  # number: of the group
    SETTLE = 4
    UPDATE = 5  # number: of the group
    BATCH = 6
    ORDER = 7
    CHECKPOINT = 8
    LOG = 9
    LAYER = 10  # number: of the program's mark


class SpanRecorder:
    """The ring of a process. steps: the first and the last global step to trace, from 1 on.

    is_on: whether the step at hand is one of them. program: the number of the one at hand.
    Shapes: memory uint8[RING_BYTES], which is zero; its own without one
    """

    def __init__(self, steps: tuple[int, int] | None, memory: Bytes | None = None) -> None:
        self.steps = steps
        self._first, self._last = steps or (0, -1)
        nbytes = RING_BYTES if steps else ROW_BYTES
        self._memory = np.zeros(nbytes, np.uint8) if memory is None else memory
        self._rows = _rows_of(self._memory)
        self._count = self.program = 0
        self.is_on = False

    def at(self, index: int) -> bool:
        """Step number `index`, from 0 on, is at hand; whether it is traced."""
        self.is_on = self._first <= index + 1 <= self._last
        return self.is_on

    def covers(self, first: int, count: int) -> bool:
        """Return whether any of so many steps, from number `first` on, is traced."""
        return first + 1 <= self._last and first + count >= self._first

    def add(self, kind: SpanKind, number: int, began_ns: int, ended_ns: int | None = None) -> None:
        """A span that ends now, or then. The oldest makes room where there is none."""
        end = perf_counter_ns() if ended_ns is None else ended_ns
        self._rows[1 + self._count % ROWS] = kind, self.program, number, began_ns, end
        self._count += 1
        self._rows[0, 0] = self._count  # last: a row that is counted is whole

    def spans(self) -> Spans:
        """Spans of the ring; as `spans_in`."""
        return spans_in(self._memory)

    def parts(self) -> Iterator[bytes]:
        """The same as bytes that fit into messages, and none at their end."""
        spans = self.spans()
        for start in range(0, len(spans), PART_ROWS):
            yield spans[start : start + PART_ROWS].tobytes()
        yield b""


def shared_recorder(steps: tuple[int, int] | None, chief: Channel) -> SpanRecorder:
    """One whose ring the chief gets, if any steps are traced and it is on this machine."""
    if steps is None or isinstance(chief, TcpChannel):
        return SpanRecorder(steps)
    with closing(SharedMemory.create("trace", RING_BYTES, ranges=())) as memory:
        chief.send(TraceRing(), (memory.descriptor,))
        return SpanRecorder(steps, memory.bytes)  # its mapping stays


class LayerMarks:
    """Marks of a program's layers, for the steps that are traced."""

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder
        self._layer, self._began_ns = NO_LAYER, 0

    def __call__(self, layer: int) -> None:
        """This layer begins, or none, and the one before ends."""
        if not self._recorder.is_on:
            return
        now = perf_counter_ns()
        if self._layer != NO_LAYER:
            self._recorder.add(SpanKind.LAYER, self._layer, self._began_ns, now)
        self._layer, self._began_ns = layer, now


def spans_in(ring: Bytes) -> Spans:
    """Spans of a ring, on the wall clock: nanoseconds since the epoch."""
    rows = _rows_of(ring)
    found = rows[1 : 1 + min(int(rows[0, 0]), ROWS)].copy()
    # Spans are monotonic times of one machine; only the wall clock is common to all.
    found[:, -2:] += time_ns() - perf_counter_ns()
    return found


def _rows_of(ring: Bytes) -> Spans:
    rows: Spans = ring.view(np.int64).reshape(-1, COLUMNS)
    return rows


def spans_of(data: bytes) -> Spans:
    """Spans that came as bytes."""
    found: npt.NDArray[Any] = np.frombuffer(data, np.int64).reshape(-1, COLUMNS)
    return found
