"""Streamer: runs the input function and streams every N-th batch to the wafer."""

import os
import select
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing, suppress
from functools import cached_property
from time import monotonic, perf_counter_ns
from types import TracebackType
from typing import NoReturn

from csrun.base.errors import PeerLost
from csrun.data import Dataset
from csrun.runtime.remote.ring import BatchSender, SlotSender
from csrun.runtime.step.batch_maker import BatchMaker, BatchNumbers
from csrun.runtime.step.trace import SpanKind, SpanRecorder, shared_recorder
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import (
    AnyMessage,
    BeginPass,
    DataOrderPart,
    EndStreaming,
    Primed,
    ReadTrace,
    Results,
    RingReady,
    StartStreaming,
    Traced,
)
from csrun.runtime.wire.rendezvous import RunFolder, join_run, streamer_name
from csrun.runtime.wire.ring import RingWriter
from csrun.runtime.wire.shared import EndedByChief, Inbox
from csrun.runtime.wire.tcp import TcpChannel

# A tenth of the weight of computing threads. On Linux niceness, policy and CPU affinity belong to a
# thread and are inherited by the threads that it starts. Source: setpriority(2), sched(7)
NICENESS = 10

LOOK_S = 0.001  # seconds between two checks for messages of the chief; a check takes far less

Ring = RingWriter | BatchSender
ReceiveOrder = Callable[[int, bytes], None]


def serve(
    control: Channel,
    datasets: Sequence[Dataset],
    cpus: Collection[int] = (),
    receive_order: ReceiveOrder = lambda number, data_order: None,
) -> Results:
    """Stream batches as the chief requests, until it sends the end.

    datasets: data sets of the run, in the same order in all tasks.
    cpus: CPUs to use instead of those of this thread.
    receive_order: called with the chief's description of a data set's order and its index, before
        the first batch of the pass.
    """
    with closing(_StreamerLoop(control, datasets, receive_order)) as loop:
        try:
            loop.begin()
            if not isinstance(control, TcpChannel):
                _yield_to_the_wafer(cpus)
            loop.work()
        except EndedByChief as interrupted:
            return interrupted.stop.results


def _yield_to_the_wafer(cpus: Collection[int]) -> None:
    """Lower the priority of this thread, and of threads that it starts, below computing threads.

    A streamer works ahead, so it can wait and the steps cannot. When woken it does not preempt a
    step, and if CPUs are scarce it uses the idle one: with 96 streamers on two CPUs, each pinned to
    one, half of them always interrupted the wafer, which slowed the steps by a quarter.
    """
    # An account may only raise its niceness; a lower value would be refused.
    niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    with suppress(OSError):  # a container may refuse one of these and allow the others
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    with suppress(OSError):
        if cpus:
            os.sched_setaffinity(0, cpus)


class _Stream:
    """Batches of one program: its ring and its maker.

    data: index of the data set.
    is_open: whether more batches are wanted.
    """

    def __init__(
        self, request: StartStreaming, ring: Ring, dataset: Dataset, recorder: SpanRecorder
    ) -> None:
        self._recorder = recorder
        self.ring, self.data = ring, request.data
        self.is_open = True
        self._request, self._dataset = request, _in_parts(dataset, request.parts)
        self._pass = 0
        self._is_primed = False

    def begin(self, order: BeginPass) -> None:
        """Make the batches of another pass from now on."""
        self._pass, self.is_open = order.number, True
        self.maker.begin(BatchNumbers(order.first, self._request.stride, order.last))

    @cached_property
    def maker(self) -> BatchMaker:
        """Maker of its batches, created in its thread, with that thread's priority."""
        request = self._request
        numbers = BatchNumbers(request.first, request.stride, request.last)
        return BatchMaker(self._dataset, request.inputs, numbers, request.settings, "this streamer")

    def make(self, control: Channel) -> None:
        """Make one batch into the ring, which has room; the first one is reported to the chief."""
        slot, number = self.ring.reserve(), self.maker.number
        began = perf_counter_ns() if self._recorder.at(number // self._request.parts) else None
        made = self.maker.make(slot.arrays)
        if began is not None:
            self._recorder.add(SpanKind.BATCH, number, began)
        self.ring.publish(made, number, self.maker.meter.cost, self._pass)
        self.is_open = made is not None
        if not self._is_primed:
            control.send(Primed(self.maker.meter.stages))
            self._is_primed = True


def _in_parts(dataset: Dataset, parts: int) -> Dataset:
    """Return the data set of the parts of its batches."""
    found = dataset if parts == 1 else dataset.in_parts(parts)
    assert found is not None, "the chief has the same data set"
    return found


class _StreamerLoop:
    """Event loop of a streamer: fills the ring with the most free slots."""

    def __init__(
        self, control: Channel, datasets: Sequence[Dataset], receive_order: ReceiveOrder
    ) -> None:
        self._control, self._datasets, self._receive_order = control, datasets, receive_order
        self._data_orders: defaultdict[int, bytes] = defaultdict(
            bytes
        )  # received and not processed yet
        self._inbox = Inbox(control)
        self._link = (
            SlotSender(self._inbox, control.bulk) if isinstance(control, TcpChannel) else None
        )
        self._recorder = SpanRecorder(None)
        self._streams: dict[int, _Stream] = {}
        self._wanted: list[_Stream] = []  # programs with more batches to make
        self._turn: _Stream | None = None
        self._look_s = 0.0  # time of the next check for messages of the chief
        self._reported = ExitStack()
        self._poll, self._polled = select.poll(), [-1]

    def begin(self) -> None:
        """Wait for the request of a ring, and create it."""
        while not self._streams:
            self._inbox.keep()
            self._handle_order()

    def _handle_order(self) -> None:
        """Execute the chief's messages so far."""
        while (order := self._inbox.take()) is not None:
            self._do(order)
            self._wanted = [stream for stream in self._streams.values() if stream.is_open]

    def _do(self, order: AnyMessage) -> None:
        match order:
            case DataOrderPart(data, part):
                self._data_orders[data] += part
            case ReadTrace():
                for part in self._recorder.parts():
                    self._control.send(Traced(part))
            case StartStreaming():
                self._pass_data_order(order.data)
                if not self._streams:
                    self._recorder = shared_recorder(order.settings.trace_steps, self._control)
                ring = self._make_ring(order)
                self._streams[order.source] = _Stream(
                    order, ring, self._datasets[order.data], self._recorder
                )
                self._control.send(RingReady(order.ring_slots), ring.descriptors)
            case EndStreaming(source):
                self._end(self._streams.pop(source))
            case BeginPass():
                stream = self._streams[order.source]
                self._pass_data_order(stream.data)
                stream.begin(order)
            case _:
                raise RuntimeError(f"chief: expected StartStreaming, got {type(order).__name__}")

    def _end(self, stream: _Stream) -> None:
        if stream is self._turn:
            self._reported.close()
            self._turn = None
        stream.ring.close()

    def _pass_data_order(self, data: int) -> None:
        """Apply orders of a data set when their pass begins: the previous pass may still run until
        then.
        """
        if data in self._data_orders:
            self._receive_order(data, self._data_orders.pop(data))

    def work(self) -> NoReturn:
        """Make batches; ends by EndedByChief."""
        while True:
            stream = self._next()
            if stream is not self._turn:
                self._reported.close()
                self._reported.enter_context(stream.maker.meter.reported_to(stream.ring.enter))
                self._turn = stream
            stream.make(self._control)
            if not stream.is_open:
                self._wanted.remove(stream)

    def _next(self) -> _Stream:
        """Return the program whose batches run out first, once one of them has a free slot."""
        while True:
            if monotonic() >= self._look_s:
                self._handle_order()
                self._look_s = monotonic() + LOOK_S
            if len(self._wanted) == 1 and self._wanted[0].ring.ready():
                return self._wanted[0]
            for stream in self._wanted:  # each may receive messages about other rings
                stream.ring.ready()
            if ready := [stream for stream in self._wanted if stream.ring.ready_count]:
                return max(ready, key=lambda stream: stream.ring.ready_count)
            self._wait([stream.ring.room for stream in self._wanted])

    def _wait(self, rooms: list[int]) -> None:
        """Wait for the chief, or for a free slot."""
        # messages read while a slot was sent no longer make a descriptor readable
        if self._inbox.has_stored:
            self._look_s = 0.0
            return
        if rooms != self._polled:
            self._poll, self._polled = select.poll(), rooms
            for descriptor in (self._control.fileno(), *rooms):
                self._poll.register(descriptor, select.POLLIN)
        self._poll.poll()
        self._look_s = 0.0

    def _make_ring(self, request: StartStreaming) -> Ring:
        if self._link is not None:
            return BatchSender(request.inputs, self._link, request.source)
        return RingWriter(request.inputs, request.ring_slots, self._control, request.readers)

    def close(self) -> None:
        self._reported.close()
        for stream in self._streams.values():
            stream.ring.close()


class InProcessStreamer:
    """Runs the streamer of rank 0 while the context lasts.

    The chief sees its failure as a lost peer; leaving the context raises the error itself instead.
    """

    def __init__(self, folder: RunFolder, datasets: Sequence[Dataset]) -> None:
        self._error: BaseException | None = None
        self._folder, self._datasets = folder, datasets
        self._thread = threading.Thread(target=self._run, name="streamer", daemon=True)

    def _run(self) -> None:
        try:
            join_run(self._folder, streamer_name(0), lambda channel: serve(channel, self._datasets))
        except BaseException as error:
            self._error = error

    def __enter__(self) -> "InProcessStreamer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.join()
        lost = error is None or isinstance(error, PeerLost)
        if self._error is not None and not isinstance(self._error, PeerLost) and lost:
            raise self._error
