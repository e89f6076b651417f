"""Time spans of traced steps, in a ring that each process allocates in advance.

A span costs two clock reads and a row of numbers; in steps that are not traced, a comparison. The
chief maps the rings of its machine, so the last spans of a killed process are available; it
requests those of other machines after the last step.
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

COLUMNS = 5  # kind, program, number, start and end in nanoseconds
ROWS = 1 << 15  # bytes of a ring
ROW_BYTES = 8 * COLUMNS
RING_BYTES = (1 + ROWS) * ROW_BYTES  # the first row has the count of rows
PART_ROWS = 1 << 10  # bytes of a message, below the limit of a message


class SpanKind(IntEnum):
    """Activity of a process; each kind is a track. The number is that of a step unless noted."""

    INPUT = 0
    WEIGHTS = 1  # number of the visit
    COMPUTE = 2  # number of the visit
    GRADIENTS = 3  # number of the group
    SETTLE = 4
    UPDATE = 5  # number of the group
    BATCH = 6
    ORDER = 7
    CHECKPOINT = 8
    LOG = 9
    LAYER = 10  # number of the program's mark


class SpanRecorder:
    """Ring of a process; steps: first and last global step to trace, from 1.

    is_on: whether the current step is traced.
    program: number of the current program.
    Shapes: memory uint8[RING_BYTES], zero; allocated if None
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
        """Set the current step to number `index`, from 0; return whether it is traced."""
        self.is_on = self._first <= index + 1 <= self._last
        return self.is_on

    def covers(self, first: int, count: int) -> bool:
        """Return whether any of `count` steps from number `first` on is traced."""
        return first + 1 <= self._last and first + count >= self._first

    def add(self, kind: SpanKind, number: int, began_ns: int, ended_ns: int | None = None) -> None:
        """Add a span that ends now, or at a given time; a full ring overwrites the oldest one."""
        end = perf_counter_ns() if ended_ns is None else ended_ns
        self._rows[1 + self._count % ROWS] = kind, self.program, number, began_ns, end
        self._count += 1
        self._rows[0, 0] = self._count  # last, so that counted rows are complete

    def spans(self) -> Spans:
        """Return the spans of the ring, as `spans_in`."""
        return spans_in(self._memory)

    def parts(self) -> Iterator[bytes]:
        """Yield the spans as bytes for messages, then empty bytes."""
        spans = self.spans()
        for start in range(0, len(spans), PART_ROWS):
            yield spans[start : start + PART_ROWS].tobytes()
        yield b""


def shared_recorder(steps: tuple[int, int] | None, chief: Channel) -> SpanRecorder:
    """Return the recorder, with a ring shared with the chief if steps are traced and it is on this
    machine.
    """
    if steps is None or isinstance(chief, TcpChannel):
        return SpanRecorder(steps)
    with closing(SharedMemory.create("trace", RING_BYTES, ranges=())) as memory:
        chief.send(TraceRing(), (memory.descriptor,))
        return SpanRecorder(steps, memory.bytes)  # the mapping stays valid


class LayerMarks:
    """Layer marks of a program, for traced steps."""

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder
        self._layer, self._began_ns = NO_LAYER, 0

    def __call__(self, layer: int) -> None:
        """Record that this layer begins, or none, and that the previous one ends."""
        if not self._recorder.is_on:
            return
        now = perf_counter_ns()
        if self._layer != NO_LAYER:
            self._recorder.add(SpanKind.LAYER, self._layer, self._began_ns, now)
        self._layer, self._began_ns = layer, now


def spans_in(ring: Bytes) -> Spans:
    """Return the spans of a ring in wall-clock time: nanoseconds since the epoch."""
    rows = _rows_of(ring)
    found = rows[1 : 1 + min(int(rows[0, 0]), ROWS)].copy()
    # Spans have monotonic times of one machine; only the wall clock is common to all.
    found[:, -2:] += time_ns() - perf_counter_ns()
    return found


def _rows_of(ring: Bytes) -> Spans:
    rows: Spans = ring.view(np.int64).reshape(-1, COLUMNS)
    return rows


def spans_of(data: bytes) -> Spans:
    """Decode spans received as bytes."""
    found: npt.NDArray[Any] = np.frombuffer(data, np.int64).reshape(-1, COLUMNS)
    return found
