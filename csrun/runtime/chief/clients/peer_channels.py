"""Chief's channels to all peers of a run, by name."""

import select
from collections.abc import Callable, Iterator
from typing import TypeVar

from csrun.base.errors import PeerLost
from csrun.executable.arrays import Bytes
from csrun.runtime.chief.clients.programs import Awaited
from csrun.runtime.step.trace import Spans, spans_in, spans_of
from csrun.runtime.wire import messages
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.listener import Listener
from csrun.runtime.wire.rendezvous import RunFolder
from csrun.runtime.wire.shared import SharedMemory, StallWatch, peer_overdue

M = TypeVar("M", bound=messages.AnyMessage)
_TASKS: dict[type, str] = {  # description of requests between orders, for messages
    messages.RingReady: "create its ring",
    messages.StoreReady: "create its store",
    messages.WaferReady: "load the program",
    messages.RelayReady: "listen for its neighbours",
    messages.Primed: "produce its first batch",
    messages.Traced: "send its trace",
    messages.UpdatesReady: "load another program's updates",
    messages.UpdatesPaused: "pause its updates",
    messages.StoreInitialized: "initialize the weights",
}


class PeerChannels:
    """Channels from the chief's listening on; the loss of any peer ends every wait."""

    def __init__(self, folder: RunFolder) -> None:
        self._listener = Listener(folder)
        self._by_name: dict[str, Channel] = {}
        self._rings: dict[str, Bytes] = {}  # trace rings of peers on this machine

    def __getitem__(self, name: str) -> Channel:
        return self._by_name[name]

    def gather(self, expected: set[str]) -> None:
        """Wait until all peers of the run have joined; later ones are refused."""
        self._by_name = self._listener.accept(expected)
        self._listener.close()

    def close(self) -> None:
        """Close without a message; the peers see a lost chief."""
        self._listener.close()
        for channel in self._by_name.values():
            channel.close()

    def expect(self, name: str, kind: type[M], descriptors: int) -> tuple[M, list[int]]:
        """Return the next message of one peer; a trace ring that may precede it is stored."""
        channel = self._by_name[name]
        while True:
            self._await(channel, StallWatch(peer_overdue(name, _TASKS[kind])))
            message, received = channel.receive()
            if not isinstance(message, messages.TraceRing):
                return channel.require(kind, descriptors, message, received)
            _, (ring,) = channel.require(messages.TraceRing, 1, message, received)
            self._rings[name] = SharedMemory.attach(ring).bytes

    def await_reply(
        self, wafer: str, order: messages.RunSteps, awaited: Callable[[Awaited], None]
    ) -> messages.StepsDone:
        """Wait for a wafer's reply to an order; `awaited` is called with its reports of waits.

        Raises: PeerLost if any peer of the run is lost meanwhile
        """
        channel = self._by_name[wafer]
        overdue = peer_overdue(wafer, f"run step {order.steps.first + 1}")
        stall_watch = StallWatch.of_reporter(overdue)
        while True:
            self._await(channel, stall_watch)
            message, descriptors = channel.receive()
            if not isinstance(message, Awaited):
                return channel.require(messages.StepsDone, 0, message, descriptors)[0]
            awaited(message)
            stall_watch = StallWatch.of_reporter(overdue, message.waited_s)

    def has_message(self, name: str) -> bool:
        """Return whether a peer has sent a message or is lost."""
        poll = select.poll()
        poll.register(self._by_name[name], select.POLLIN)
        return bool(poll.poll(0))

    def traced(self, asks: bool) -> list[tuple[str, Spans]]:
        """Return the spans that peers have traced, by name; of remote peers only if `asks`."""
        asked = [name for name in self._by_name if asks and name not in self._rings]
        for name in asked:
            self._by_name[name].send(messages.ReadTrace())
        found = {name: spans_of(b"".join(self._parts(name))) for name in asked}
        found |= {name: spans_in(ring) for name, ring in self._rings.items()}
        return [(name, found[name]) for name in self._by_name if name in found]

    def _parts(self, name: str) -> Iterator[bytes]:
        while part := self.expect(name, messages.Traced, 0)[0].part:
            yield part

    def _await(self, wanted: Channel, stall_watch: StallWatch) -> None:
        """Wait for a message of a peer, while watching the others for their end.

        Raises: PeerLost if any of them is lost meanwhile
        """
        poll = select.poll()
        by_descriptor = {channel.fileno(): channel for channel in self._by_name.values()}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in stall_watch.poll(poll):
                channel = by_descriptor[descriptor]
                if channel is wanted:
                    return
                if channel.has_ended():
                    raise PeerLost(f"lost the connection to {channel.peer}", channel.peer)
                poll.unregister(descriptor)  # an early answer, which is read later

    def has_lost_peer(self) -> bool:
        """Return whether any peer of the run is gone."""
        return any(channel.has_ended() for channel in self._by_name.values())

    def stop(self, results: messages.Results) -> None:
        """Send all peers the end of the run."""
        for channel in self._by_name.values():
            channel.send(messages.Stop(results))
