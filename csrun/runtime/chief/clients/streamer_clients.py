"""Chief's clients of the streamers: requests for batches, and transfer of their rings to
readers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from csrun.base.run_config import RunSettings
from csrun.executable import Plan
from csrun.executable.replica_plan import inputs_of_part
from csrun.runtime.chief.clients.peer_channels import PeerChannels
from csrun.runtime.input_log import Feeding
from csrun.runtime.remote.ring import BatchRelay
from csrun.runtime.wire import messages
from csrun.runtime.wire.channel import MAX_MESSAGE_BYTES
from csrun.runtime.wire.ring import ring_slots_for
from csrun.runtime.wire.tcp import TcpChannel

COUNTERS = 2  # descriptors of a ring in each reader: filled, free
PART_BYTES = MAX_MESSAGE_BYTES // 2  # bytes per message of a larger object
Descriptors = tuple[int, int, int]  # descriptors of a ring in a reader: memory, filled, free


class ChiefStreamers:
    """Chief's end of the channels to all streamers of a run.

    feeding: the streamers; names of their stages are known after they have started.
    readers: number of wafers that read each ring.
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
        self._passes = 0  # passes begun so far
        self._data_of: dict[int, int] = {}  # data set indices by program
        self._parts_of: dict[int, int] = {}  # parts of a batch by program

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the streamers, in the order of their batches."""
        return self._feeding.streamers

    @property
    def count_remote(self) -> int:
        """Number of streamers on other machines."""
        return sum(isinstance(self._peers[name], TcpChannel) for name in self.names)

    def require_whole(self) -> None:
        """Raises: DamagedTransferError if batches were corrupted in transit"""
        if self._relay.damage is not None:
            raise self._relay.damage

    def close(self) -> None:
        """Free the rings that were created here."""
        self._relay.close()

    def start(
        self,
        plan: Plan,
        source: int,
        first: int,
        last: int | None,
        data: int = 0,
        data_order: bytes = b"",
        parts: int = 1,
    ) -> None:
        """Start streaming a program's batches from `first` on, from a data set by index.

        data_order: description of the data set's order. parts: of each batch, each from the next
        streamer.
        """
        self._data_of[source], self._parts_of[source] = data, parts
        self._send_data_order(data, data_order)
        inputs = inputs_of_part(plan.inputs, parts)
        for name, own in self._turns(first * parts):
            self._peers[name].send(
                messages.StartStreaming(
                    inputs,
                    own,
                    len(self.names),
                    None if last is None else last * parts,
                    ring_slots_for(len(self.names), inputs, parts),
                    self._settings,
                    source,
                    data,
                    self.readers,
                    parts,
                )
            )

    def begin(self, source: int, first: int, last: int | None, data_order: bytes) -> int:
        """Begin a pass over the data of a program with its own batches; return the pass number."""
        self._passes += 1
        self._send_data_order(self._data_of[source], data_order)
        parts = self._parts_of[source]
        end = None if last is None else last * parts
        for name, own in self._turns(first * parts):
            self._peers[name].send(messages.BeginPass(source, self._passes, own, end))
        return self._passes

    def end(self, source: int) -> None:
        """Stop streaming a program's batches. The ring of another machine's streamer stays until
        the end.
        """
        for name in self.names:
            self._peers[name].send(messages.EndStreaming(source))

    def rings(self, plan: Plan, source: int) -> Iterator[list[Descriptors]]:
        """Yield every streamer's ring for each reader; those of other machines are created here.

        One at a time, for the caller to close or keep: each has three descriptors.
        """
        parts = self._parts_of[source]
        inputs = inputs_of_part(plan.inputs, parts)
        slots = ring_slots_for(len(self.names), inputs, parts)
        for name in self.names:
            channel = self._peers[name]
            if isinstance(channel, TcpChannel):
                self._peers.expect(name, messages.RingReady, 0)
                yield self._relay.add(channel, source, inputs, slots, self.readers)
            else:
                count = 1 + COUNTERS * self.readers
                _, (memory, *counters) = self._peers.expect(name, messages.RingReady, count)
                pairs = zip(counters[::COUNTERS], counters[1::COUNTERS], strict=True)
                yield [(memory, filled, free) for filled, free in pairs]

    def primed(self, replayed: bool | None = None) -> Feeding:
        """Return the streamers of a program, once each has its first batch."""
        stages = [self._peers.expect(name, messages.Primed, 0)[0].stages for name in self.names]
        feeding = replace(self._feeding, stage=partial(_stage, stages))
        return feeding if replayed is None else replace(feeding, replayed=replayed)

    def _turns(self, first: int) -> Iterator[tuple[str, int]]:
        """Yield each streamer with its own first batch, from batch `first` on."""
        for turn, name in enumerate(self.names):
            yield name, first + (turn - first) % len(self.names)

    def _send_data_order(self, data: int, data_order: bytes) -> None:
        """Send each streamer the order of a data set, in as many messages as needed."""
        # The order may be larger than one message.
        for start in range(0, len(data_order), PART_BYTES):
            part = messages.DataOrderPart(data, data_order[start : start + PART_BYTES])
            for name in self.names:
                self._peers[name].send(part)


def _stage(stages: Sequence[tuple[str, ...]], streamer: int, stage: int) -> str | None:
    names = stages[streamer]
    return names[stage] if 0 <= stage < len(names) else None
