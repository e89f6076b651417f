"""A streamer: runs the input function and streams every N-th batch to the wafer."""

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from itertools import count
from types import TracebackType

from csrun.base.errors import PeerLost
from csrun.data import Dataset
from csrun.runtime.remote.ring import BatchSender
from csrun.runtime.step.batch_maker import BatchMaker, Numbers
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import Primed, Results, RingReady, StartStreaming, Stop
from csrun.runtime.wire.rendezvous import RunFolder, streamer_name, take_part
from csrun.runtime.wire.ring import RingWriter
from csrun.runtime.wire.shared import Interrupted
from csrun.runtime.wire.tcp import TcpChannel

# A tenth of the weight of who computes. On Linux niceness, policy and CPUs are a thread's own, and
# handed on to those that it starts. Source: setpriority(2), sched(7)
NICENESS = 10


def serve(control: Channel, dataset: Dataset, cpus: Collection[int] = ()) -> Results:
    """Stream batches as the chief says, until it says stop.

    cpus: where to do so, if elsewhere than this thread runs.
    """
    request, _ = control.receive()
    if isinstance(request, Stop):
        return request.results
    if not isinstance(request, StartStreaming):
        raise RuntimeError(f"chief: expected StartStreaming, got {type(request).__name__}")
    ring = _make_ring(request, control)
    control.send(RingReady(request.ring_slots), ring.descriptors)
    if not isinstance(control, TcpChannel):
        _yield_to_the_wafer(cpus)
    numbers = Numbers(request.first, request.stride, request.last)
    try:
        maker = BatchMaker(dataset, request.inputs, numbers, request.settings, "this streamer")
        with maker.meter.reported_to(ring.enter):
            _stream(ring, maker, control)
        return control.expect(Stop)[0].results
    except Interrupted as interrupted:
        return interrupted.stop.results
    finally:
        ring.close()


def _yield_to_the_wafer(cpus: Collection[int]) -> None:
    """Have this thread, and those that it starts, give way to who computes on the same machine.

    It works ahead: it can wait, and the steps cannot. Woken, it interrupts nobody in mid-step, and
    where CPUs are scarce it takes the one that is free: of 96 streamers on two CPUs, each on one of
    its own, half were always in the wafer's way, which took a quarter of the steps.
    """
    with suppress(OSError):  # a container may refuse it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        if cpus:
            os.sched_setaffinity(0, cpus)


def _make_ring(request: StartStreaming, control: Channel) -> RingWriter | BatchSender:
    if isinstance(control, TcpChannel):
        return BatchSender(request.inputs, control)
    return RingWriter(request.inputs, request.ring_slots, control)


def _stream(ring: RingWriter | BatchSender, maker: BatchMaker, control: Channel) -> None:
    for turn in count():
        slot, number = ring.reserve(), maker.number
        made = maker.make(slot.arrays)
        ring.publish(made, number, maker.meter.cost)
        if turn == 0:
            control.send(Primed(maker.meter.stages))
        if made is None:
            return


class OwnStreamer:
    """Runs the streamer of rank 0 while the context lasts.

    What goes wrong in it reaches the chief as a lost peer; leaving the context raises the error
    itself instead.
    """

    def __init__(self, folder: RunFolder, dataset: Dataset) -> None:
        self._error: BaseException | None = None
        self._folder, self._dataset = folder, dataset
        self._thread = threading.Thread(target=self._run, name="streamer", daemon=True)

    def _run(self) -> None:
        try:
            take_part(self._folder, streamer_name(0), lambda channel: serve(channel, self._dataset))
        except BaseException as error:
            self._error = error

    def __enter__(self) -> "OwnStreamer":
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
