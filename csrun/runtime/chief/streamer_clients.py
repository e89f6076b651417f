"""The streamers as the chief has them: told what to make, and their rings given to the reader."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from csrun.base.run_config import RunSettings
from csrun.executable import Plan
from csrun.runtime.chief.peer_channels import PeerChannels
from csrun.runtime.input_log import Feeding
from csrun.runtime.remote.ring import BatchRelay
from csrun.runtime.wire import messages
from csrun.runtime.wire.channel import MAX_MESSAGE_BYTES
from csrun.runtime.wire.ring import ring_slots_for
from csrun.runtime.wire.tcp import TcpChannel

COUNTERS = 2  # of a ring in each reader: filled, free
PART_BYTES = MAX_MESSAGE_BYTES // 2  # of what is sent in several messages
Descriptors = tuple[int, int, int]  # of a ring in a reader: memory, filled, free


class ChiefStreamers:
    """The chief's end of the channels to all streamers of a run.

    feeding: who they are; what their stages are called is known when they have begun. readers: how
    many wafers read each ring.
    """

    def __init__(
        self,
        peers: PeerChannels,
        feeding: Feeding,
        settings: RunSettings,
        readers: int = 1,
    ) -> None:
        self._peers, self._feeding, self._settings = peers, feeding, settings
        self.readers = readers
        self._relay = BatchRelay()
        self._passes = 0  # begun so far
        self._data_of: dict[int, int] = {}  # of programs: the numbers of their data sets

    @property
    def names(self) -> tuple[str, ...]:
        """In their turn."""
        return self._feeding.streamers

    @property
    def count_remote(self) -> int:
        """Number of streamers on other machines."""
        return sum(isinstance(self._peers[name], TcpChannel) for name in self.names)

    def require_whole(self) -> None:
        """Raises: DamagedTransferError when batches have arrived altered"""
        if self._relay.damage is not None:
            raise self._relay.damage

    def close(self) -> None:
        """Let go of the rings that were made here."""
        self._relay.close()

    def start(
        self,
        plan: Plan,
        source: int,
        first: int,
        last: int | None,
        data: int = 0,
        told: bytes = b"",
    ) -> None:
        """Have them stream the batches of a program from `first` on, of a data set by its number.

        told: what they must know of its order.
        """
        self._data_of[source] = data
        self._tell(data, told)
        for name, own in self._turns(first):
            self._peers[name].send(
                messages.StartStreaming(
                    plan.inputs,
                    own,
                    len(self.names),
                    last,
                    ring_slots_for(len(self.names), plan.inputs),
                    self._settings,
                    source,
                    data,
                    self.readers,
                )
            )

    def begin(self, source: int, first: int, last: int | None, told: bytes) -> int:
        """Begin a pass over the data of a program with batches of its own: its number."""
        self._passes += 1
        self._tell(self._data_of[source], told)
        for name, own in self._turns(first):
            self._peers[name].send(messages.BeginPass(source, self._passes, own, last))
        return self._passes

    def end(self, source: int) -> None:
        """Nobody takes these batches any more. The ring of another machine's stays to the end."""
        for name in self.names:
            self._peers[name].send(messages.EndStreaming(source))

    def rings(self, plan: Plan, source: int) -> Iterator[list[Descriptors]]:
        """Every streamer's ring, for each that reads it; those of other machines are made here.

        One at a time, for its taker to close or keep: all at once are three descriptors each.
        """
        slots = ring_slots_for(len(self.names), plan.inputs)
        for name in self.names:
            channel = self._peers[name]
            if isinstance(channel, TcpChannel):
                self._peers.expect(name, messages.RingReady, 0)
                yield self._relay.add(channel, source, plan.inputs, slots, self.readers)
            else:
                count = 1 + COUNTERS * self.readers
                _, (memory, *counters) = self._peers.expect(name, messages.RingReady, count)
                pairs = zip(counters[::COUNTERS], counters[1::COUNTERS], strict=True)
                yield [(memory, filled, free) for filled, free in pairs]

    def primed(self, replayed: bool | None = None) -> Feeding:
        """Feeding of a program, once each streamer has its first batch."""
        stages = [self._peers.expect(name, messages.Primed, 0)[0].stages for name in self.names]
        feeding = replace(self._feeding, stage=partial(_stage, stages))
        return feeding if replayed is None else replace(feeding, replayed=replayed)

    def _turns(self, first: int) -> Iterator[tuple[str, int]]:
        """Each streamer, and the first batch of its own from batch `first` on."""
        for turn, name in enumerate(self.names):
            yield name, first + (turn - first) % len(self.names)

    def _tell(self, data: int, told: bytes) -> None:
        """Tell each streamer of the order of a data set, in as many parts as it takes."""
        # An order of the data set may be longer than a message can be.
        for start in range(0, len(told), PART_BYTES):
            part = messages.TellOrder(data, told[start : start + PART_BYTES])
            for name in self.names:
                self._peers[name].send(part)


def _stage(stages: Sequence[tuple[str, ...]], streamer: int, stage: int) -> str | None:
    names = stages[streamer]
    return names[stage] if 0 <= stage < len(names) else None
