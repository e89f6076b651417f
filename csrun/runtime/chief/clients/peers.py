"""The run of a job: the chief's end of the channels to streamers, MemoryX and the wafers."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from types import TracebackType

from csrun.base import open_files
from csrun.base.errors import PeerLost
from csrun.base.run_config import RunSettings
from csrun.context.task import report_before_closing
from csrun.executable import Executable, Plan, numbers_view, state_views
from csrun.executable.arrays import Array, Batch, Bytes
from csrun.executable.bind import store_of
from csrun.executable.replica_plan import inputs_of_part
from csrun.executable.store_places import gradient_views
from csrun.records import log_lines
from csrun.runtime.chief.clients.memoryx_client import ChiefStores, close_all, update_pause_of
from csrun.runtime.chief.clients.peer_channels import PeerChannels
from csrun.runtime.chief.clients.programs import Awaited, ClusterMachine, LoadResult
from csrun.runtime.chief.clients.pushed_ring import RINGS, PushedRing
from csrun.runtime.chief.clients.streamer_clients import ChiefStreamers
from csrun.runtime.chief.clients.swarmx_client import SwarmxConnections, connect_wafers
from csrun.runtime.chief.clients.wafer_clients import Wafers
from csrun.runtime.chief.machine import Feed, StoreState, UpdatePause
from csrun.runtime.cpus import cpus_of, thread_count
from csrun.runtime.input_log import Feeding
from csrun.runtime.step.results import result_slots
from csrun.runtime.step.source import RingSource
from csrun.runtime.step.trace import Spans
from csrun.runtime.store.store_initialization import initialize
from csrun.runtime.wire import messages
from csrun.runtime.wire.rendezvous import MEMORYX, RunFolder, wafer_name
from csrun.runtime.wire.ring import RingReader, prefetch_depths, ring_slots_for
from csrun.runtime.wire.shared import Counter, SharedMemory
from csrun.runtime.wire.tcp import TcpChannel

LOCAL_DESCRIPTORS = 1  # of a streamer in the chief: its channel
REMOTE_DESCRIPTORS = 2  # channel and bulk connection
RING_DESCRIPTORS = 2  # counters of a ring, in each reader and in the process that made it

Notify = Callable[[str], None]


@dataclass(frozen=True)
class RunRequest:
    """Request of the chief to set up a run.

    first: first global step.
    last: first batch that is not used.
    batch: first batch that is used, if its number is not that of the step.
    feeding: the streamers; names of their stages are known after they have started.
    systems: names of the CS systems, which are leased and equal.
    cores: number of usable cores of a system.
    sram_bytes: their memory (None: no limit).
    data_order: description of the data set's order for the streamers, if needed.
    data: index of the data set in the streamers' list.
    checkpoints: space that checkpoints need on a disk next to the store.
    memoryx: names of the MemoryX tasks, at least one if weights are streamed.
    swarmx: names of the SwarmX tasks, needed by several systems if nodes are separate machines.
    is_pushed: as in `Feed`, for this program.
    parts: number of parts that streamers make of each batch, one for each replica of the model.
    """

    executable: Executable
    settings: RunSettings
    first: int
    last: int | None
    feeding: Feeding
    systems: tuple[str, ...]
    cores: int
    sram_bytes: int | None = None
    data_order: bytes = b""
    data: int = 0
    batch: int | None = None
    checkpoints: messages.CheckpointSpace | None = None
    memoryx: tuple[str, ...] = (MEMORYX,)
    swarmx: tuple[str, ...] = ()
    is_pushed: bool = False
    parts: int = 1


class RunPeers:
    """The peers of a run, from the chief's listening to the end; a context manager.

    Leaving it by an exception closes the channels without a message, so the peers see a lost chief.
    Leaving it by PeerLost logs why a streamer was abandoned, if one was.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._peers = PeerChannels(folder)
        self._resources = ExitStack()
        self._stores: ChiefStores | None = None
        self._pushed: dict[int, PushedRing] = {}  # by the program that reads it
        self._require_whole_batches: Callable[[], None] = lambda: None

    def __enter__(self) -> "RunPeers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Peers report a lost chief as soon as the channels close; the cause must be reported
        # before.
        report_before_closing(error)
        self._resources.close()
        for ring in self._pushed.values():
            ring.close()
        self._peers.close()
        if isinstance(error, PeerLost):
            self._require_whole_batches()

    def start(
        self, request: RunRequest, spawn_wafers: Callable[[], None], notify: Notify
    ) -> "ClusterMachine":
        """Connect the peers, load the Executable everywhere, and fill the data pipeline."""
        plan = request.executable.plan
        wafers = tuple(map(wafer_name, request.systems))
        # First, so that wafer processes start during the wait for the others.
        spawn_wafers()
        self._gather(request, wafers)
        self._wafers = Wafers(self._peers, wafers)
        first = request.first if request.batch is None else request.batch
        # Before programs are loaded, so that streamers make their first batches meanwhile.
        if not request.is_pushed:
            data = request.data, request.data_order, request.parts
            self._streamers.start(plan, 0, first, request.last, *data)
        lanes = self._lanes(request, wafers)
        if not plan.store_in_arena:
            notify(self._make_stores(request))
        notify(log_lines.PROGRAMMING)
        loading = self._loading(
            request.executable, first, is_pushed=request.is_pushed, parts=request.parts
        )
        if lanes:
            self._wafers.load_with_connections(loading, lanes)
        else:
            self._wafers.load(loading, self._stores.parts if self._stores else [])
        self._add_rings(plan, 0, request.is_pushed)
        programming_time_s, parts = self._wafers.ready(2)
        arenas, results = zip(*parts, strict=True)
        notify(log_lines.PROGRAMMED)
        notify(log_lines.coordinator_up(plan.placed_pes, request.cores))
        feeding = Feeding()
        if not request.is_pushed:
            notify(log_lines.waiting_for_streamers(len(self._streamers.names)))
            feeding = self._streamers.primed()
            notify(log_lines.STREAMERS_READY)
        return ClusterMachine(
            self,
            request.executable,
            "+".join(request.systems),
            LoadResult(list(map(self._map, results)), feeding),
            self._state(plan, arenas),
            programming_time_s,
            request.sram_bytes,
        )

    def load(self, executable: Executable, number: int, feed: Feed) -> LoadResult:
        """Load the program of this number everywhere, with its own batches."""
        plan = executable.plan
        if feed.is_pushed:
            self._load_next(executable, 0, is_pushed=True)
            self._add_rings(plan, number, is_pushed=True)
            return LoadResult(self._loaded_results(), Feeding())
        remote = self._streamers.count_remote  # whose rings are created here
        counters = RING_DESCRIPTORS * self._streamers.readers
        self._resources.enter_context(open_files.room_for(counters * remote))
        self._streamers.start(plan, number, feed.first, feed.last, feed.number, feed.data_order)
        self._load_next(executable, feed.first)
        self._add_rings(plan, number)
        results = self._loaded_results()
        return LoadResult(results, self._streamers.primed(feed.dataset.replayed))

    def initialize(self, state: dict[str, Array]) -> None:
        """Initialize the state, in MemoryX or in the process that maps the arena."""
        if self._stores is not None:
            self._stores.initialize()
            return
        plan, seed = self._request.executable.plan, self._request.settings.seed
        initialize(plan, state, seed, thread_count(), is_fresh=True)

    def load_sharing_batches(
        self, executable: Executable, other: int, feeding: Feeding
    ) -> LoadResult:
        """Load a program that uses the batches of another one."""
        self._load_next(executable, 0, other)
        return LoadResult(self._loaded_results(), feeding)

    def _loaded_results(self) -> list[Bytes]:
        """Return the results of another program, once all wafers have loaded it."""
        return [self._map(results) for (results,) in self._wafers.ready(1)[1]]

    def unload(self, number: int) -> None:
        """Free a program that will not run again."""
        if self._stores is not None:
            self._stores.unload(number)
        self._wafers.broadcast(messages.UnloadProgram(number))

    def end(self, source: int) -> None:
        """Free the batches of a program that are no longer used."""
        if source in self._pushed:
            self._pushed.pop(source).close()
        else:
            self._streamers.end(source)
        self._wafers.broadcast(messages.EndStreaming(source))

    def begin(self, source: int, first: int, last: int | None, data_order: bytes) -> None:
        """Begin a pass over the data of a program with its own batches."""
        number = self._streamers.begin(source, first, last, data_order)
        self._wafers.broadcast(messages.BeginPass(source, number, first, last))

    def push(self, source: int, batch: Batch) -> None:
        """Send the next batch of a program with pushed batches."""
        self._pushed[source].push(batch)

    def feed(self, request: RunRequest) -> RingSource:
        """Connect the peers, and read the streamers' batches here; there is no wafer and no
        step.
        """
        plan, names = request.executable.plan, request.feeding.streamers
        self._gather(request, (), RING_DESCRIPTORS)
        self._streamers.start(plan, 0, request.first, request.last)
        slots, ahead = ring_slots_for(len(names), plan.inputs), prefetch_depths(len(names))
        readers = [
            self._resources.enter_context(
                closing(RingReader(own, plan.inputs, slots, self._peers[name], ahead=ahead))
            )
            for (own,), name in zip(self._streamers.rings(plan, 0), names, strict=True)
        ]
        self._streamers.primed()
        return RingSource(readers, request.first)

    def order(self, order: messages.RunSteps) -> None:
        """Send an order to the wafers."""
        self._wafers.broadcast(order)

    def await_reply(
        self, order: messages.RunSteps, awaited: Callable[[Awaited], None]
    ) -> messages.StepsDone:
        """Wait for their merged replies; `awaited` is called with a wafer's report of a wait."""
        return self._wafers.await_reply(order, awaited)

    def has_reply(self) -> bool:
        """Return whether all wafers have sent a message since their order."""
        return self._wafers.have_replied()

    @property
    def has_writable_state(self) -> bool:
        """True if the whole state is mapped from one store on this machine."""
        if self._stores is None:
            return len(self._request.systems) == 1
        return not self._stores.are_remote and not any(self._stores.disks)

    def written(self) -> None:
        """Notify the wafers that the state was written."""
        self._wafers.broadcast(messages.WeightsChanged())

    def pause_updates(self) -> UpdatePause:
        """Make the updates wait, in MemoryX or in the wafer that has the store."""
        if self._stores is not None and self._stores.are_remote:
            return self._stores.pause_updates()
        owners = self._memoryx or (wafer_name(self._request.systems[0]),)
        for owner in owners:
            self._peers[owner].send(messages.PauseUpdates())
        answers = [self._peers.expect(owner, messages.UpdatesPaused, 1) for owner in owners]
        plan = self._request.executable.plan
        return update_pause_of([Counter(counter) for _, (counter,) in answers], plan)

    def traced(self, asks: bool) -> list[tuple[str, Spans]]:
        """Return the spans that the peers have traced, by name; all of them if `asks`."""
        return self._peers.traced(asks)

    def has_lost_peer(self) -> bool:
        """Return whether any peer of the run is gone."""
        return self._peers.has_lost_peer()

    def stop(self, results: messages.Results) -> None:
        """Tell every peer that the run is over."""
        self._peers.stop(results)

    def _gather(self, request: RunRequest, wafers: Sequence[str], of_ring: int = 0) -> None:
        """Wait for streamers, MemoryX and wafers; `of_ring`: descriptors of one read here."""
        names, readers = request.feeding.streamers, max(1, len(wafers))
        each = LOCAL_DESCRIPTORS
        if self._folder.host is not None:
            each = REMOTE_DESCRIPTORS + RING_DESCRIPTORS * readers
        self._resources.enter_context(open_files.room_for((each + of_ring) * len(names)))
        self._memoryx = () if request.executable.plan.store_in_arena else request.memoryx
        self._peers.gather({*names, *wafers, *self._memoryx, *request.swarmx})
        self._request = request
        streamers = ChiefStreamers(self._peers, request.feeding, request.settings, readers)
        self._streamers = self._resources.enter_context(closing(streamers))
        self._require_whole_batches = streamers.require_whole

    def _lanes(self, request: RunRequest, wafers: Sequence[str]) -> list[SwarmxConnections]:
        """The connections of several systems to SwarmX, where MemoryX is on other machines."""
        plan, servers = request.executable.plan, self._memoryx
        are_remote = any(isinstance(self._peers[server], TcpChannel) for server in servers)
        if plan.systems == 1 or not are_remote:
            return []
        return connect_wafers(
            self._peers,
            self._folder,
            request.swarmx,
            servers,
            wafers,
            plan.precision,
            request.settings.trace_steps,
        )

    def _loading(
        self,
        executable: Executable,
        first: int,
        batches_of: int | None = None,
        *,
        is_pushed: bool = False,
        parts: int = 1,
    ) -> messages.LoadWafer:
        plan, rings = executable.plan, RINGS if is_pushed else len(self._streamers.names)
        return messages.LoadWafer(
            str(executable.directory),
            executable.digest,
            plan.store,
            self._request.settings.seed,
            first,
            rings,
            ring_slots_for(rings, inputs_of_part(plan.inputs, parts), parts),
            result_slots(plan),
            servers=len(self._memoryx),
            remote_stores=self._memoryx if self._stores and self._stores.are_remote else (),
            batches_of=batches_of,
            disks=self._stores.disks if self._stores else (),
            trace_steps=self._request.settings.trace_steps,
            cpus=cpus_of(plan, self._request.settings.threads),
            parts=parts,
        )

    def _add_rings(self, plan: Plan, source: int, is_pushed: bool = False) -> None:
        if is_pushed:
            self._add_pushed_ring(plan, source)
            return
        for readers in self._streamers.rings(plan, source):
            self._wafers.add(readers)
            # One ring at a time: all at once would take three descriptors a streamer and wafer.
            close_all({descriptor for ring in readers for descriptor in ring})

    def _add_pushed_ring(self, plan: Plan, source: int) -> None:
        names, settings = self._wafers.names, self._request.settings
        ring = PushedRing(plan, settings, self._peers[names[0]], len(names))
        self._pushed[source] = ring
        self._wafers.add(ring.descriptors)

    def _state(self, plan: Plan, arenas: Sequence[int]) -> StoreState:
        """Return the tensors of a checkpoint, for any location of the store, and the numbers of the
        steps.
        """
        memory, *_ = map(self._map, arenas)
        if self._stores is not None:
            return self._stores.state(plan)
        whole = store_of(plan, memory, None)
        gradients = gradient_views(plan, whole)
        return StoreState(state_views(plan, whole), numbers_view(plan, whole), gradients)

    def _make_stores(self, request: RunRequest) -> str:
        plan = request.executable.plan
        self._stores = ChiefStores(plan, self._memoryx, self._peers, self._resources)
        return self._stores.make(request.executable, request.settings, request.checkpoints)

    def _load_next(
        self,
        executable: Executable,
        first: int,
        batches_of: int | None = None,
        *,
        is_pushed: bool = False,
    ) -> None:
        """Load another program in the wafers, and in MemoryX if there is one."""
        parts = self._stores.add(executable) if self._stores else []
        loading = self._loading(executable, first, batches_of, is_pushed=is_pushed)
        self._wafers.load(loading, parts)
        close_all(parts)

    def _map(self, descriptor: int) -> Bytes:
        """Map a peer's memory while arrays over it exist."""
        return SharedMemory.attach(descriptor).bytes
