"""Chief's clients of the wafers, one per CS system: one order to all, and merged answers."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from csrun.runtime.chief.clients.memoryx_client import close_all, parts_of
from csrun.runtime.chief.clients.peer_channels import PeerChannels
from csrun.runtime.chief.clients.programs import Awaited
from csrun.runtime.chief.clients.swarmx_client import SwarmxConnections
from csrun.runtime.wire import messages


class Wafers:
    """Channels to the wafers; names: in the order of the systems."""

    def __init__(self, peers: PeerChannels, names: Sequence[str]) -> None:
        self._peers, self.names = peers, names

    def load_with_connections(
        self, loading: messages.LoadWafer, lanes: Sequence[SwarmxConnections]
    ) -> None:
        """Load a run's first program in each, with its connections to SwarmX."""
        for system, (name, own) in enumerate(zip(self.names, lanes, strict=True)):
            order = replace(loading, system=system, remote_stores=own.names)
            self._peers[name].send(order, own.descriptors)
            close_all(own.descriptors)

    def load(self, loading: messages.LoadWafer, store_parts: Sequence[int]) -> None:
        """Load a program in each, with its own descriptors of the store."""
        are_several = len(self.names) > 1  # and MemoryX's tasks on their machine
        for system, name in enumerate(self.names):
            own = parts_of(store_parts, loading.servers, system) if are_several else store_parts
            self._peers[name].send(replace(loading, system=system), own)

    def add(self, readers: Sequence[Sequence[int]]) -> None:
        """Send each its part of a streamer's ring."""
        for name, ring in zip(self.names, readers, strict=True):
            self._peers[name].send(messages.AddRing(), ring)

    def ready(self, descriptors: int) -> tuple[float, list[list[int]]]:
        """Wait until all have loaded; return the time that took, and the descriptors of each."""
        found = [self._peers.expect(name, messages.WaferReady, descriptors) for name in self.names]
        return max(ready.programming_time_s for ready, _ in found), [parts for _, parts in found]

    def broadcast(self, order: messages.AnyMessage) -> None:
        """Send all a message without a reply."""
        for name in self.names:
            self._peers[name].send(order)

    def await_reply(
        self, order: messages.RunSteps, awaited: Callable[[Awaited], None]
    ) -> messages.StepsDone:
        """Wait until all have computed steps; `awaited` is called with a wafer's report of a wait.

        Raises: PeerLost if any peer of the run is lost meanwhile
        """
        return merge_replies([self._peers.await_reply(name, order, awaited) for name in self.names])

    def have_replied(self) -> bool:
        """Return whether all have sent a message since their order."""
        return all(self._peers.has_message(name) for name in self.names)


def merge_replies(replies: Sequence[messages.StepsDone]) -> messages.StepsDone:
    """Merge the replies of all systems: as many steps as the first one that stopped, with its
    reason.

    The times are those of the slowest system. The loss that stopped them is the sum of the partial
    losses of the systems that stopped there.
    """
    done = min(reply.done for reply in replies)
    first = [reply for reply in replies if reply.done == done]
    bad = [reply.bad_loss for reply in first if reply.bad_loss is not None]
    longest = max(first, key=lambda reply: reply.seconds)
    return replace(longest, bad_loss=sum(bad[1:], bad[0]) if bad else None)
