"""A streamer: runs the input function and streams every N-th batch to the wafer."""

import threading
from itertools import count
from types import TracebackType

from csrun.base.errors import PeerLost
from csrun.data import Dataset
from csrun.runtime.remote.ring import BatchSender
from csrun.runtime.roles.peer import streamer_name, take_part
from csrun.runtime.step.batches import fill
from csrun.runtime.step.numerics import require_finite
from csrun.runtime.step.production import Meter
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import Primed, Results, RingReady, StartStreaming, Stop
from csrun.runtime.wire.rendezvous import RunFolder
from csrun.runtime.wire.ring import END_OF_DATA, RingWriter
from csrun.runtime.wire.signal import Interrupted
from csrun.runtime.wire.tcp import TcpChannel


def serve(control: Channel, dataset: Dataset) -> Results:
    """Stream batches as the chief says, until it says stop."""
    request, _ = control.receive()
    if isinstance(request, Stop):
        return request.results
    if not isinstance(request, StartStreaming):
        raise RuntimeError(f"chief: expected StartStreaming, got {type(request).__name__}")
    ring = _make_ring(request, control)
    control.send(RingReady(request.ring_slots), ring.descriptors)
    meter = Meter(dataset.clock, "this streamer")
    try:
        with meter.shown_in(ring):
            _stream(ring, dataset, request, control, meter)
        return control.expect(Stop)[0].results
    except Interrupted as interrupted:
        return interrupted.stop.results
    finally:
        ring.close()


def _make_ring(request: StartStreaming, control: Channel) -> RingWriter | BatchSender:
    if isinstance(control, TcpChannel):
        return BatchSender(request.inputs, control)
    return RingWriter(request.inputs, request.ring_slots, control)


def _stream(
    ring: RingWriter | BatchSender,
    dataset: Dataset,
    request: StartStreaming,
    control: Channel,
    meter: Meter,
) -> None:
    deliveries = dataset.deliveries(request.first, request.stride)
    for index in count(request.first, request.stride):
        slot = ring.reserve()
        past_end = request.last is not None and index >= request.last
        with meter.producing(index):
            delivery = None if past_end else next(deliveries, None)
            rows = END_OF_DATA
            if delivery is not None:
                rows = fill(slot.arrays, delivery, request.inputs, index, dataset.clock)
                if request.check_numerics:
                    require_finite(slot.arrays, rows, request.inputs, index, delivery)
        ring.publish(rows, index, meter.cost)
        if index == request.first:
            control.send(Primed(meter.stages))
        if delivery is None:
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
