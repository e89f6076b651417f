"""Messages between the roles of a run: small typed structs, encoded as msgpack.

Bulk data are not part of messages: batches, weights and results are in shared memory, whose
descriptors accompany a message.
"""

import msgspec

from csrun.base.run_config import RunSettings, TraceSteps
from csrun.executable import InputSpec, StoreLayout

Results = dict[str, float]


class StartStreaming(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → streamer: produce batches `first`, `first + stride`, … into a ring.

    last: first batch that the run will not use (None: until the data end).
    source: number of the program that they are for.
    data: index of the data set in the streamer's list.
    readers: number of wafers, which all read every batch.
    """

    inputs: tuple[InputSpec, ...]
    first: int
    stride: int
    last: int | None
    ring_slots: int
    settings: RunSettings = RunSettings()
    source: int = 0
    data: int = 0
    readers: int = 1


class RingReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Streamer → chief, with the ring's descriptors: memory, and for each reader filled and free.

    From another machine there are none, because the chief creates the ring.
    """

    slots: int


class Primed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Streamer → chief: the first batch is in the ring, or the data are exhausted.

    stages: names of the pipeline's stages; a slot refers to them by index.
    """

    stages: tuple[str, ...] = ()


class DataOrderPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → streamer: a part of the order of the next pass of a data set, by its index.

    All parts are sent before that pass begins.
    """

    data: int
    part: bytes


class BeginPass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → streamer and wafer: continue a source with batch `first`, up to `last`.

    number: number of the pass, which is in the headers of its slots; others are discarded.
    first: the streamer's own first batch, or the run's.
    """

    source: int
    number: int
    first: int
    last: int | None


class CheckpointSpace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Disk space of a run's checkpoints: the one being written, and those that are kept."""

    folder: str
    count: int
    nbytes: int


class LoadStore(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX: create a store for this Executable and serve its updates.

    layout: layout of the store, which may be larger than the Executable requires.
    checkpoints: checkpoints that need space next to a store on disk.
    server: index of this MemoryX task among the run's `servers`.
    later_bytes: size of stores that are created on its machine later.
    """

    directory: str
    digest: str
    layout: StoreLayout
    settings: RunSettings
    checkpoints: CheckpointSpace | None = None
    server: int = 0
    servers: int = 1
    later_bytes: int = 0


class StoreOnDisk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Store in a file: its folder, and the maximum of it in memory."""

    folder: str
    memory_bytes: int


class StoreReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """MemoryX → chief, with descriptors: memory, file, and for each wafer gradients, weights,
    mailbox.

    Without a file the memory is sent twice. From another machine there are none.

    nbytes: size of its own groups.
    disk: None for a store in memory.
    """

    nbytes: int
    disk: StoreOnDisk | None = None


class LoadUpdates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX: also serve this Executable, over the store of the first one."""

    directory: str
    digest: str


class UpdatesReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """MemoryX → chief, with each wafer's descriptors: gradients, weights, mailbox; none if
    remote.
    """


class RelayWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → SwarmX: relay between these children and each MemoryX task, or the parent if given.

    children: names in the order of summation of the gradients, which have this precision.
    """

    children: tuple[str, ...]
    parent: str | None
    memoryx: tuple[str, ...]
    precision: str
    trace_steps: TraceSteps | None = None


class RelayReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """SwarmX → chief: its neighbours may connect."""


class JoinSwarmX(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX on another machine: this SwarmX task sends the requests of all wafers."""

    task: str
    me: str


class PauseUpdates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX, or a wafer with the store: a checkpoint is copied from now on.

    An update waits until the values that it overwrites are copied.
    """


class UpdatesPaused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Reply to PauseUpdates, with a descriptor: the counter of copied tensors."""


class UnloadProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer and MemoryX: no further order is for this program.

    Other programs may still use its batches.
    """

    program: int


class EndStreaming(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer and streamer: the batches of this source are not used any more."""

    source: int


class InitializeStore(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX: set the state, which is zero, to its initial values, by the run's seed."""


class StoreInitialized(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """MemoryX → chief: the initial values are in the store."""


class ReadState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX on another machine: send these bytes of the store, raw."""

    offset_bytes: int
    nbytes: int


class WriteState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX on another machine: these bytes of the store follow, raw."""

    offset_bytes: int
    nbytes: int


class StateWritten(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """MemoryX → chief: the bytes are in the store."""


class LoadWafer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer: load this Executable; descriptors: those of the store in weight streaming.

    There are those of each of `servers` MemoryX tasks in order; for one on another machine, the
    connection to it or to SwarmX, with names in `remote_stores`. `rings` AddRing messages follow,
    in the order of the streamers.

    Programs of a run are numbered in the order of loading. The first one has the store, with this
    layout; others have descriptors of their counters of gradients and weights and of their mailbox,
    if any.

    batches_of: program whose batches it uses, unless it has its own rings.
    disks: for stores on this machine, the files of those on disk.
    system: index of the wafer's system.
    cpus: CPUs for its kernels.
    """

    directory: str
    digest: str
    layout: StoreLayout
    seed: int
    first_batch: int
    rings: int
    ring_slots: int
    result_slots: int
    servers: int = 0
    remote_stores: tuple[str, ...] = ()
    batches_of: int | None = None
    disks: tuple[StoreOnDisk | None, ...] = ()
    trace_steps: TraceSteps | None = None
    system: int = 0
    cpus: int = 1


class AddRing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer, with the descriptors of one streamer's ring: memory, filled, free."""


class WaferReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Wafer → chief, with descriptors: arena and results; after the first program only results."""

    programming_time_s: float


class BatchStall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Wafer → chief, during an order: a batch is late.

    streamer: index of the streamer.
    stage: index of the stage that the batch is in, -1 if unknown.
    """

    streamer: int
    waited_s: float
    stage: int = -1


class WeightStall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Wafer → chief, during an order: weights or updates of MemoryX are late.

    server: index of the task.
    """

    waited_s: float
    server: int = 0


class AccumulatedBatches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches of steps with gradient accumulation, up to the last batch of each step.

    before: number of batches of the first step that earlier orders have computed.
    ends: for each batch of the order whether it is the last one of its step. Without batches, the
        step ends with those before.
    """

    before: int
    ends: tuple[bool, ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps that end."""
        return sum(self.ends) if self.ends else 1

    def first(self, batches: int) -> "AccumulatedBatches":
        """Return the part for the first batches."""
        return AccumulatedBatches(self.before, self.ends[:batches])

    def batches_of(self, steps: int) -> int:
        """Return the number of batches of the first steps."""
        ended = 0
        for number, ends in enumerate(self.ends, 1):
            ended += ends
            if ended == steps:
                return number
        return len(self.ends)


class StepOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Up to `count` steps, starting with global step `first`.

    `first` determines schedules and random draws; the next batch is the one after the last batch
    taken.

    keeps_all: keep the outputs of each step of a training, not only the last one's.
    accumulation: the steps are batches with gradient accumulation, of a plan that `accumulates`.
    """

    first: int
    count: int
    keeps_all: bool = False
    accumulation: AccumulatedBatches | None = None


class RunSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer: run these steps of a program, by its number."""

    steps: StepOrder
    program: int = 0


class WeightsChanged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer: the state was written since the last order; weights in slots are stale."""


class StreamerUse(msgspec.Struct, frozen=True, array_like=True):
    """The wafer's use of one streamer in an order's steps.

    streamer: index of the streamer.
    wait_s: time that the wafer waited for its batches.
    produce_s: time to make them.
    slowest: index of its slowest stage, -1 if unknown.
    slowest_s: that stage's time per batch.
    """

    streamer: int
    batches: int
    wait_s: float
    produce_s: float
    slowest: int
    slowest_s: float


class StepsDone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Wafer → chief: `done` steps are complete, and their results are in the result slots.

    With gradient accumulation these are batches, and the steps that end are complete.

    samples: number of valid rows.
    seconds: time of the steps, including waits for batches.
    input: one entry for each streamer whose batches the steps used.
    weights_s, first_group_s: waits for weights, and for those of a step's first visit.
    checkpoint_s: waits for updates that a checkpoint held back.
    finished: the data are exhausted.
    bad_loss: loss of the step after them, which was not applied.
    uncounted: index in the batch's counts if no label of that step counts.
    """

    done: int
    samples: int
    seconds: float
    input: tuple[StreamerUse, ...] = ()
    finished: bool = False
    bad_loss: float | None = None
    uncounted: int | None = None
    weights_s: float = 0.0
    first_group_s: float = 0.0
    checkpoint_s: float = 0.0


class TraceRing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Peer of the chief's machine → chief, with a descriptor: the ring of its trace."""


class ReadTrace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → peers whose ring it has not: send the trace so far."""


class Traced(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Reply to ReadTrace: a part of a process's spans; the last part is empty."""

    part: bytes


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → all: this run is over; every task's estimator returns `results`."""

    results: Results


AnyMessage = (
    StartStreaming
    | DataOrderPart
    | RingReady
    | Primed
    | BeginPass
    | LoadStore
    | StoreReady
    | LoadUpdates
    | UpdatesReady
    | RelayWeights
    | RelayReady
    | JoinSwarmX
    | PauseUpdates
    | UpdatesPaused
    | UnloadProgram
    | WeightsChanged
    | EndStreaming
    | InitializeStore
    | StoreInitialized
    | ReadState
    | WriteState
    | StateWritten
    | LoadWafer
    | AddRing
    | WaferReady
    | BatchStall
    | WeightStall
    | RunSteps
    | StepsDone
    | TraceRing
    | ReadTrace
    | Traced
    | Stop
)
