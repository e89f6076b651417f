"""The run of a job: the chief's end of the channels to streamers, MemoryX and the wafer."""

import logging
import os
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TypeVar

from csrun.base import open_files
from csrun.base.errors import PeerLost
from csrun.executable import Executable, InputSpec, Plan, state_views
from csrun.executable.bind import Array, Bytes, store_of
from csrun.records import log_lines
from csrun.runtime.input_log import Feeding
from csrun.runtime.remote.ring import BatchRelay
from csrun.runtime.remote.store import remote_state
from csrun.runtime.step.results import ResultSlots, StepResult, result_slots
from csrun.runtime.step.source import RingSource
from csrun.runtime.wire import messages
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.listener import Listener
from csrun.runtime.wire.rendezvous import MEMORYX, RunFolder, wafer_name
from csrun.runtime.wire.ring import BURST, LEAST_RING_SLOTS, RingReader, slot_bytes
from csrun.runtime.wire.shared import SharedMemory, StallWatch, peer_overdue
from csrun.runtime.wire.tcp import TcpChannel

BATCHES_AHEAD = 16  # over all streamers: one that stalls for 12 steps now and then is not felt
RINGS_BYTES = 1 << 29  # of all rings together, where LEAST_RING_SLOTS of each take less
LOCAL_DESCRIPTORS = 1  # of a streamer in the chief: its channel
REMOTE_DESCRIPTORS = 4  # channel, bulk, and the counters of the ring that is made for it here
RING_DESCRIPTORS = 2  # of a ring in its reader: the counters

log = logging.getLogger("csrun")
M = TypeVar("M", bound=messages.AnyMessage)
Notify = Callable[[str], None]
Descriptors = tuple[int, int, int]  # of a ring: memory, filled, free
Awaited = messages.BatchAwaited | messages.WeightsAwaited  # what a wafer says of its own waits
_TASKS: dict[type, str] = {  # what a peer is asked for before the first step, in words
    messages.RingReady: "make its ring",
    messages.StoreReady: "make its store",
    messages.WaferReady: "load the program",
    messages.Primed: "make its first batch",
}


@dataclass(frozen=True)
class RunRequest:
    """What the chief needs to know to set a run up.

    first: the first global step; its batch has the same index. last: the first that is not run.
    feeding: who streams; what their stages are called is known when they have begun.
    system: the name of the CS system, leased by the caller, and cores: how many of its cores a
    program can use.
    """

    executable: Executable
    settings: messages.RunSettings
    first: int
    last: int | None
    feeding: Feeding
    system: str
    cores: int


class Cluster:
    """The peers of a run, from the chief's listening to its Stop. A context manager.

    Leaving it by an exception closes the channels without a word: the peers see a lost chief.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._listener = Listener(folder)
        self._channels: dict[str, Channel] = {}
        self._resources = ExitStack()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()
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
        self._start_streamers(request, streamers)
        store_parts = [] if plan.store_in_arena else self._load_store(request)
        notify(log_lines.PROGRAMMING)
        ring_slots = ring_slots_for(len(streamers), plan.inputs)
        self._channels[wafer].send(
            messages.LoadWafer(
                str(request.executable.directory),
                request.executable.digest,
                request.settings.seed,
                request.first,
                len(streamers),
                ring_slots,
                result_slots(plan),
                remote_store=len(store_parts) == 1,
            ),
            store_parts,
        )
        for ring in self._rings(plan, streamers):
            self._channels[wafer].send(messages.AddRing(), ring)
            _close(ring)
        ready, (arena, results) = self._expect(wafer, messages.WaferReady, 2)
        notify(log_lines.PROGRAMMED)
        notify(log_lines.coordinator_up(plan.placed_pes, request.cores))
        notify(log_lines.waiting_for_streamers(len(streamers)))
        stages = [self._primed(name).stages for name in streamers]
        notify(log_lines.STREAMERS_READY)
        return ClusterMachine(
            self,
            request,
            self._map(results),
            self._state(plan, arena, store_parts),
            ready.programming_time_s,
            replace(request.feeding, stage=partial(_stage, stages)),
        )

    def feed(self, request: RunRequest) -> RingSource:
        """Gather the peers, and take the streamers' batches here: no wafer, no step."""
        plan = request.executable.plan
        streamers = request.feeding.streamers
        self._make_room(len(streamers), RING_DESCRIPTORS)
        expected = {*streamers} | (set() if plan.store_in_arena else {MEMORYX})
        self._channels = self._listener.accept(expected)
        self._listener.close()  # nobody else may come
        self._start_streamers(request, streamers)
        slots = ring_slots_for(len(streamers), plan.inputs)
        readers = [
            self._resources.enter_context(
                closing(RingReader(ring, plan.inputs, slots, self._channels[name]))
            )
            for ring, name in zip(self._rings(plan, streamers), streamers, strict=True)
        ]
        for name in streamers:
            self._primed(name)
        return RingSource(readers, request.first)

    def _make_room(self, streamers: int, of_ring: int = 0) -> None:
        """For the descriptors of the streamers; `of_ring`: of a ring that is read here, too."""
        from_elsewhere = self._folder.host is not None
        each = (REMOTE_DESCRIPTORS if from_elsewhere else LOCAL_DESCRIPTORS) + of_ring
        self._resources.enter_context(open_files.room_for(each * streamers))

    def _start_streamers(self, request: RunRequest, streamers: Sequence[str]) -> None:
        for turn, name in enumerate(streamers):
            first = request.first + (turn - request.first) % len(streamers)
            self._channels[name].send(
                messages.StartStreaming(
                    request.executable.plan.inputs,
                    first,
                    len(streamers),
                    request.last,
                    ring_slots_for(len(streamers), request.executable.plan.inputs),
                    request.settings,
                )
            )

    def _rings(self, plan: Plan, streamers: Sequence[str]) -> Iterator[Descriptors]:
        """Every streamer's ring, for who reads it; those of other machines are made here.

        One at a time, for its taker to close or keep: all at once are three descriptors each.
        """
        relay = BatchRelay(plan.inputs, ring_slots_for(len(streamers), plan.inputs))
        self._resources.enter_context(closing(relay))
        for name in streamers:
            channel = self._channels[name]
            if isinstance(channel, TcpChannel):
                self._expect(name, messages.RingReady, 0)
                yield relay.add(channel.bulk)
            else:
                _, (memory, filled, free) = self._expect(name, messages.RingReady, 3)
                yield memory, filled, free
        relay.start()

    def _state(self, plan: Plan, arena: int, store_parts: Sequence[int]) -> dict[str, Array]:
        """The tensors of a checkpoint, wherever the store is."""
        memory = self._map(arena)
        channel = self._channels.get(MEMORYX)
        if isinstance(channel, TcpChannel):
            return remote_state(plan, channel)
        store = self._map(store_parts[0]) if store_parts else None
        _close(store_parts[1:])
        return state_views(plan, store_of(plan, memory, store))

    def _load_store(self, request: RunRequest) -> list[int]:
        channel = self._channels[MEMORYX]
        executable = request.executable
        channel.send(
            messages.LoadStore(
                str(executable.directory), executable.digest, request.settings.seed, request.first
            )
        )
        if isinstance(channel, TcpChannel):
            self._expect(MEMORYX, messages.StoreReady, 0)
            return [channel.bulk.fileno()]
        _, descriptors = self._expect(MEMORYX, messages.StoreReady, 3)
        return descriptors

    def _map(self, descriptor: int) -> Bytes:
        """A peer's memory, mapped until the cluster is left."""
        return self._resources.enter_context(closing(SharedMemory.attach(descriptor))).bytes

    def order(
        self, name: str, order: messages.RunSteps, awaited: Callable[[Awaited], None]
    ) -> messages.StepsDone:
        """Give an order to a wafer and wait for its answer; `awaited` hears what it waits for.

        Raises: PeerLost when any peer of the run is lost meanwhile.
        """
        channel = self._channels[name]
        channel.send(order)
        overdue = peer_overdue(name, f"run step {order.first + 1}")
        stall_watch = StallWatch.of_reporter(overdue)
        while True:
            self._await(channel, stall_watch)
            message, descriptors = channel.receive()
            if not isinstance(message, Awaited):
                return channel.require(messages.StepsDone, 0, message, descriptors)[0]
            awaited(message)
            stall_watch = StallWatch.of_reporter(overdue, message.waited_s)

    def _primed(self, name: str) -> messages.Primed:
        """A streamer's word that its first batch is there."""
        return self._expect(name, messages.Primed, 0)[0]

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


class ClusterMachine:
    """A loaded run: the wafer's process steps, MemoryX updates, the chief reads their memory."""

    def __init__(
        self,
        cluster: Cluster,
        request: RunRequest,
        results: Bytes,
        state: dict[str, Array],
        programming_time_s: float,
        feeding: Feeding,
    ) -> None:
        self.plan = request.executable.plan
        self.device = request.system
        self.programming_time_s = programming_time_s
        self.state = state
        self.feeding = feeding
        self._cluster = cluster
        self._wafer = wafer_name(request.system)
        self._results = ResultSlots(self.plan, results)

    def run(self, first: int, count: int) -> messages.StepsDone:
        """Run up to `count` steps from global step `first`.

        Raises: PeerLost when a peer of the run is lost.
        """
        try:
            return self._cluster.order(
                self._wafer, messages.RunSteps(first, count), self._say_awaited
            )
        except PeerLost as lost:
            lost.step = first  # a restart for the same cause at the same step is in vain
            raise

    def result(self, slot: int, step: int) -> StepResult:
        """The result of the last call's step number `slot`."""
        return self._results.read(slot, step)

    def _say_awaited(self, awaited: Awaited) -> None:
        what, where = "memoryx to update the weights", ""
        if isinstance(awaited, messages.BatchAwaited):
            what = f"a batch of {self.feeding.streamers[awaited.streamer]}"
            stage = self.feeding.stage(awaited.streamer, awaited.stage)
            where = f"; it is in its stage '{stage}'" if stage else ""
        log.warning(f"The wafer has waited for {what} for {awaited.waited_s:.0f} s{where}")

    def has_lost_peer(self) -> bool:
        """Whether a part of the run is gone."""
        return self._cluster.has_lost_peer()

    def close(self, results: messages.Results) -> None:
        """End the run in all its parts, which return `results`."""
        self._cluster.stop(results)


def ring_slots_for(streamers: int, inputs: tuple[InputSpec, ...]) -> int:
    """Slots of each ring: all rings hold BATCHES_AHEAD, or fewer that take RINGS_BYTES.

    To these come the slots of a burst, which are read already.
    """
    in_bytes = RINGS_BYTES // (streamers * slot_bytes(inputs))
    ahead = max(LEAST_RING_SLOTS, BATCHES_AHEAD // streamers)
    return max(LEAST_RING_SLOTS, min(in_bytes, ahead + BURST))


def _stage(stages: Sequence[tuple[str, ...]], streamer: int, stage: int) -> str | None:
    names = stages[streamer]
    return names[stage] if 0 <= stage < len(names) else None


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
