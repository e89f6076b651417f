"""The run of a job: the chief's end of the channels to streamers, MemoryX and the wafer."""

import logging
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TypeVar

from csrun.base import open_files
from csrun.base.errors import PeerLost
from csrun.executable import Executable, Plan, numbers_view, state_views
from csrun.executable.bind import Array, Bytes, store_of
from csrun.records import log_lines
from csrun.runtime.input_log import Feeding
from csrun.runtime.remote.ring import BatchRelay
from csrun.runtime.roles.chief_store import ChiefStore, State, close_all
from csrun.runtime.roles.machine import Feed
from csrun.runtime.roles.programs import Awaited, ClusterMachine, Loaded
from csrun.runtime.step.results import result_slots
from csrun.runtime.step.source import RingSource
from csrun.runtime.step.trace import Spans, spans_of
from csrun.runtime.store.first_values import initialize, own_threads
from csrun.runtime.wire import messages
from csrun.runtime.wire.channel import MAX_MESSAGE_BYTES, Channel
from csrun.runtime.wire.listener import Listener
from csrun.runtime.wire.rendezvous import MEMORYX, RunFolder, wafer_name
from csrun.runtime.wire.ring import RingReader, ahead_of, ring_slots_for
from csrun.runtime.wire.shared import SharedMemory, StallWatch, peer_overdue
from csrun.runtime.wire.tcp import TcpChannel

PART_BYTES = MAX_MESSAGE_BYTES // 2  # of what is told in several messages
LOCAL_DESCRIPTORS = 1  # of a streamer in the chief: its channel
REMOTE_DESCRIPTORS = 4  # channel, bulk, and the counters of the ring that is made for it here
RING_DESCRIPTORS = 2  # of a ring in its reader: the counters

log = logging.getLogger("csrun")
M = TypeVar("M", bound=messages.AnyMessage)
Notify = Callable[[str], None]
Descriptors = tuple[int, int, int]  # of a ring: memory, filled, free
_TASKS: dict[type, str] = {  # what a peer is asked for before the first step, in words
    messages.RingReady: "make its ring",
    messages.StoreReady: "make its store",
    messages.WaferReady: "load the program",
    messages.Primed: "make its first batch",
    messages.Traced: "tell what it has traced",
    messages.UpdatesReady: "load another program's updates",
    messages.StoreInitialized: "draw the first weights",
}


@dataclass(frozen=True)
class RunRequest:
    """What the chief needs to know to set a run up.

    first: the first global step. last: the first batch that is not taken. batch: the first that is,
    if its number is not the step's.
    feeding: who streams; what their stages are called is known when they have begun.
    system: the name of the CS system, leased by the caller, and cores: how many of its cores a
    program can use, and sram_bytes their memory (None: any number). told: what streamers must know
    of the order of the data set, if there is anything. data: the number of that among theirs.
    checkpoints: what must have room on a disk beside the store.
    """

    executable: Executable
    settings: messages.RunSettings
    first: int
    last: int | None
    feeding: Feeding
    system: str
    cores: int
    sram_bytes: int | None = None
    told: bytes = b""
    data: int = 0
    batch: int | None = None
    checkpoints: messages.CheckpointSpace | None = None


class Cluster:
    """The peers of a run, from the chief's listening to its Stop. A context manager.

    Leaving it by an exception closes the channels without a word: the peers see a lost chief.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._listener = Listener(folder)
        self._channels: dict[str, Channel] = {}
        self._resources = ExitStack()
        self._relay = BatchRelay()
        self._store: ChiefStore | None = None
        self._passes = 0  # begun so far
        self._data_of: dict[int, int] = {}  # of programs: the numbers of their data sets, if not 0

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()
        self._relay.close()
        self._listener.close()
        for channel in self._channels.values():
            channel.close()

    def start(
        self, request: RunRequest, spawn_wafer: Callable[[], None], notify: Notify
    ) -> "ClusterMachine":
        """Gather the peers, load the Executable everywhere, and prime the data pipeline."""
        plan = request.executable.plan
        streamers = request.feeding.streamers
        wafer = wafer_name(request.system)
        spawn_wafer()
        self._make_room(len(streamers))
        expected = {*streamers, wafer} | (set() if plan.store_in_arena else {MEMORYX})
        self._channels = self._listener.accept(expected)
        self._listener.close()  # nobody else may come
        self._request, self._wafer = request, wafer
        self._data_of[0] = request.data
        first = request.first if request.batch is None else request.batch
        self._start_streamers(plan, 0, first, request.last, request.data, request.told)
        if not plan.store_in_arena:
            notify(self._make_store(request))
        notify(log_lines.PROGRAMMING)
        self._load_wafer(request.executable, first, self._store.parts if self._store else [])
        self._add_rings(plan, 0)
        ready, (arena, results) = self._expect(wafer, messages.WaferReady, 2)
        notify(log_lines.PROGRAMMED)
        notify(log_lines.coordinator_up(plan.placed_pes, request.cores))
        notify(log_lines.waiting_for_streamers(len(streamers)))
        feeding = self._primed_feeding()
        notify(log_lines.STREAMERS_READY)
        return ClusterMachine(
            self,
            request.executable,
            request.system,
            Loaded(self._map(results), feeding),
            *self._state(plan, arena),
            ready.programming_time_s,
            request.sram_bytes,
        )

    def load(self, executable: Executable, number: int, feed: Feed) -> Loaded:
        """Load the program of this number everywhere, with batches of its own."""
        plan = executable.plan
        self._make_room_for_rings()
        self._start_streamers(plan, number, feed.first, feed.last, feed.number, feed.told)
        self._data_of[number] = feed.number
        self._load_beside_store(executable, feed.first)
        self._add_rings(plan, number)
        results = self._expect(self._wafer, messages.WaferReady, 1)[1][0]
        return Loaded(self._map(results), self._primed_feeding(feed.dataset.replayed))

    def initialize(self, state: dict[str, Array]) -> None:
        """Give the state its first values: MemoryX does it, or who has mapped the arena."""
        if self._store is not None:
            self._store.initialize()
            return
        plan, seed = self._request.executable.plan, self._request.settings.seed
        initialize(plan, state, seed, own_threads(), is_fresh=True)

    def load_beside(self, executable: Executable, other: int, feeding: Feeding) -> Loaded:
        """Load a program that takes the batches of another one."""
        self._load_beside_store(executable, 0, other)
        results = self._expect(self._wafer, messages.WaferReady, 1)[1][0]
        return Loaded(self._map(results), feeding)

    def begin(self, source: int, first: int, last: int | None, told: bytes) -> None:
        """Begin a pass over the data of a program with batches of its own."""
        self._passes += 1
        self._tell(self._data_of.get(source, 0), told)
        for name, own in self._turns(first):
            self._channels[name].send(messages.BeginPass(source, self._passes, own, last))
        self._channels[self._wafer].send(messages.BeginPass(source, self._passes, first, last))

    def feed(self, request: RunRequest) -> RingSource:
        """Gather the peers, and take the streamers' batches here: no wafer, no step."""
        plan = request.executable.plan
        streamers = request.feeding.streamers
        self._make_room(len(streamers), RING_DESCRIPTORS)
        expected = {*streamers} | (set() if plan.store_in_arena else {MEMORYX})
        self._channels = self._listener.accept(expected)
        self._listener.close()  # nobody else may come
        self._request = request
        self._start_streamers(plan, 0, request.first, request.last)
        slots, ahead = ring_slots_for(len(streamers), plan.inputs), ahead_of(len(streamers))
        readers = [
            self._resources.enter_context(
                closing(RingReader(ring, plan.inputs, slots, self._channels[name], ahead=ahead))
            )
            for ring, name in zip(self._rings(plan, 0), streamers, strict=True)
        ]
        for name in streamers:
            self._primed(name)
        return RingSource(readers, request.first)

    def _make_room(self, streamers: int, of_ring: int = 0) -> None:
        """For the descriptors of the streamers; `of_ring`: of a ring that is read here, too."""
        from_elsewhere = self._folder.host is not None
        each = (REMOTE_DESCRIPTORS if from_elsewhere else LOCAL_DESCRIPTORS) + of_ring
        self._resources.enter_context(open_files.room_for(each * streamers))

    def _make_room_for_rings(self) -> None:
        """For those of another program, of streamers on other machines."""
        afar = sum(isinstance(channel, TcpChannel) for channel in self._channels.values())
        self._resources.enter_context(open_files.room_for(RING_DESCRIPTORS * afar))

    @property
    def _streamers(self) -> tuple[str, ...]:
        return self._request.feeding.streamers

    def _turns(self, first: int) -> Iterator[tuple[str, int]]:
        """Each streamer, and the first batch of its own from batch `first` on."""
        for turn, name in enumerate(self._streamers):
            yield name, first + (turn - first) % len(self._streamers)

    def _tell(self, data: int, told: bytes) -> None:
        """Tell each streamer of the order of a data set, in as many parts as it takes."""
        for start in range(0, len(told), PART_BYTES):
            part = messages.TellOrder(data, told[start : start + PART_BYTES])
            for name in self._streamers:
                self._channels[name].send(part)

    def _start_streamers(
        self,
        plan: Plan,
        source: int,
        first: int,
        last: int | None,
        data: int = 0,
        told: bytes = b"",
    ) -> None:
        self._tell(data, told)
        for name, own in self._turns(first):
            self._channels[name].send(
                messages.StartStreaming(
                    plan.inputs,
                    own,
                    len(self._streamers),
                    last,
                    ring_slots_for(len(self._streamers), plan.inputs),
                    self._request.settings,
                    source,
                    data,
                )
            )

    def _rings(self, plan: Plan, source: int) -> Iterator[Descriptors]:
        """Every streamer's ring, for who reads it; those of other machines are made here.

        One at a time, for its taker to close or keep: all at once are three descriptors each.
        """
        slots = ring_slots_for(len(self._streamers), plan.inputs)
        for name in self._streamers:
            channel = self._channels[name]
            if isinstance(channel, TcpChannel):
                self._expect(name, messages.RingReady, 0)
                yield self._relay.add(channel.bulk, source, plan.inputs, slots)
            else:
                _, (memory, filled, free) = self._expect(name, messages.RingReady, 3)
                yield memory, filled, free

    def _load_wafer(
        self,
        executable: Executable,
        first: int,
        store_parts: Sequence[int],
        batches_of: int | None = None,
    ) -> None:
        plan, rings = executable.plan, len(self._streamers)
        self._channels[self._wafer].send(
            messages.LoadWafer(
                str(executable.directory),
                executable.digest,
                self._request.settings.seed,
                first,
                rings,
                ring_slots_for(rings, plan.inputs),
                result_slots(plan),
                remote_store=len(store_parts) == 1,
                batches_of=batches_of,
                disk=self._store.disk if self._store else None,
                trace_steps=self._request.settings.trace_steps,
            ),
            store_parts,
        )

    def _add_rings(self, plan: Plan, source: int) -> None:
        for ring in self._rings(plan, source):
            self._channels[self._wafer].send(messages.AddRing(), ring)
            close_all(ring)

    def _state(self, plan: Plan, arena: int) -> State:
        """The tensors of a checkpoint, wherever the store is, and the numbers of the steps."""
        memory = self._map(arena)
        if self._store is not None:
            return self._store.state(plan)
        whole = store_of(plan, memory, None)
        return state_views(plan, whole), numbers_view(plan, whole)

    def _make_store(self, request: RunRequest) -> str:
        expect = partial(self._expect, MEMORYX)
        self._store = ChiefStore(self._channels[MEMORYX], expect, self._resources)
        first, checkpoints = request.first, request.checkpoints
        return self._store.make(request.executable, request.settings, first, checkpoints)

    def _load_beside_store(
        self, executable: Executable, first: int, batches_of: int | None = None
    ) -> None:
        """Have MemoryX, if there is one, and the wafer load another program."""
        parts = self._store.add(executable) if self._store else []
        self._load_wafer(executable, first, parts, batches_of)
        close_all(parts)

    def _map(self, descriptor: int) -> Bytes:
        """A peer's memory, mapped until the cluster is left."""
        return self._resources.enter_context(closing(SharedMemory.attach(descriptor))).bytes

    def order(
        self, order: messages.RunSteps, awaited: Callable[[Awaited], None]
    ) -> messages.StepsDone:
        """Give an order to the wafer and wait for its answer; `awaited` hears what it waits for.

        Raises: PeerLost when any peer of the run is lost meanwhile.
        """
        channel = self._channels[self._wafer]
        channel.send(order)
        overdue = peer_overdue(self._wafer, f"run step {order.first + 1}")
        stall_watch = StallWatch.of_reporter(overdue)
        while True:
            self._await(channel, stall_watch)
            message, descriptors = channel.receive()
            if not isinstance(message, Awaited):
                return channel.require(messages.StepsDone, 0, message, descriptors)[0]
            awaited(message)
            stall_watch = StallWatch.of_reporter(overdue, message.waited_s)

    def traced(self) -> list[tuple[str, Spans]]:
        """What each peer has traced, by its name."""
        for channel in self._channels.values():
            channel.send(messages.ReadTrace())
        return [(name, spans_of(b"".join(self._parts(name)))) for name in self._channels]

    def _parts(self, name: str) -> Iterator[bytes]:
        while part := self._expect(name, messages.Traced, 0)[0].part:
            yield part

    def _primed(self, name: str) -> messages.Primed:
        """A streamer's word that its first batch is there."""
        return self._expect(name, messages.Primed, 0)[0]

    def _primed_feeding(self, replayed: bool | None = None) -> Feeding:
        """Who makes a program's batches, once each streamer's first one is there."""
        stages = [self._primed(name).stages for name in self._streamers]
        feeding = replace(self._request.feeding, stage=partial(_stage, stages))
        return feeding if replayed is None else replace(feeding, replayed=replayed)

    def _expect(self, name: str, kind: type[M], descriptors: int) -> tuple[M, list[int]]:
        """The next message of one peer."""
        channel = self._channels[name]
        self._await(channel, StallWatch(peer_overdue(name, _TASKS[kind])))
        return channel.expect(kind, descriptors)

    def _await(self, wanted: Channel, stall_watch: StallWatch) -> None:
        """Until a peer has something to say, while the others have nothing to say but their end.

        Raises: PeerLost when any of them is lost meanwhile
        """
        poll = select.poll()
        by_descriptor = {channel.fileno(): channel for channel in self._channels.values()}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in stall_watch.poll(poll):
                channel = by_descriptor[descriptor]
                if channel is wanted:
                    return
                if channel.has_ended():
                    raise PeerLost(f"lost the connection to {channel.peer}", channel.peer)
                poll.unregister(descriptor)  # an early answer: it will be asked for later

    def has_lost_peer(self) -> bool:
        """Whether any peer of the run is gone."""
        return any(channel.has_ended() for channel in self._channels.values())

    def stop(self, results: messages.Results) -> None:
        """Tell every peer that the run is over."""
        for channel in self._channels.values():
            channel.send(messages.Stop(results))


def _stage(stages: Sequence[tuple[str, ...]], streamer: int, stage: int) -> str | None:
    names = stages[streamer]
    return names[stage] if 0 <= stage < len(names) else None
