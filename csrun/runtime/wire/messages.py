"""Messages between the roles of a run: small typed structs, msgpack on the wire.

Bulk data never travels in them: batches, weights and results lie in shared memory whose descriptors
go along with a message.
"""

import msgspec

from csrun.base.run_config import RunSettings, TraceSteps
from csrun.executable import InputSpec, StoreLayout

Results = dict[str, float]


class StartStreaming(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → streamer: produce batches `first`, `first + stride`, … into a ring.

    `last` is the first batch that the run will not take (None: until the data ends). `source` is
    the number of the program that they are for, `data` that of the data set among the streamer's.
    readers: how many wafers read the ring, each every batch.
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
    """Streamer → chief, with the ring's descriptors: memory, and of each reader filled and free.

    Without them from another machine: the chief makes the ring.
    """

    slots: int


class Primed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Streamer → chief: the first batch lies in the ring, or the data is at its end.

    stages: the names of the pipeline's stages, by whose numbers a slot tells of them.
    """

    stages: tuple[str, ...] = ()


class TellOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → streamer: a part of what a data set, by its number, must know of the next pass.

    All parts are there when that is to begin.
    """

    data: int
    part: bytes


class BeginPass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → streamer and wafer: of a source, batch `first` comes next, up to `last`.

    number: of the pass, which its slots have in their headers; those of others are thrown away.
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
    """Chief → MemoryX: make a store for this Executable and apply its learning algorithm.

    layout: of the store, which may be longer than that of the Executable alone. checkpoints: what
    must have room next to a store on disk. server: which of the run's `servers` MemoryX tasks it
    is, from 0. later_bytes: of the stores that others make on its machine later.
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
    """A store in a file: its folder, and the most that is in memory of it."""

    folder: str
    memory_bytes: int


class StoreReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """MemoryX → chief, with descriptors: memory, file, and of each wafer gradients, weights, notes.

    The file is the memory again where the store has none. Without them from another machine.

    nbytes: of its own groups. disk: None for a store in memory.
    """

    nbytes: int
    disk: StoreOnDisk | None = None


class LoadUpdates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX: serve this Executable, too, over the store of the first."""

    directory: str
    digest: str


class UpdatesReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """MemoryX → chief, with each wafer's descriptors: gradients, weights, notes; none if remote."""


class RelayWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → SwarmX: be between these children and each task of MemoryX, or the parent if any.

    children: in whose order gradients, which are of this precision, are added up.
    """

    children: tuple[str, ...]
    parent: str | None
    memoryx: tuple[str, ...]
    precision: str
    trace_steps: TraceSteps | None = None


class RelayReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """SwarmX → chief: its neighbours may come."""


class JoinSwarmX(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX on another machine: this SwarmX task gives the orders of all wafers."""

    task: str
    me: str


class HoldUpdates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX, or a wafer that has the store: a checkpoint is copied from here on.

    An update waits until what it changes is copied.
    """


class UpdatesHeld(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Their answer, with a descriptor: the counter of the tensors that are copied."""


class UnloadProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer and MemoryX: no order is of this program any more.

    Others may still take its batches.
    """

    program: int


class EndStreaming(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer and streamer: nobody takes the batches of this source any more."""

    source: int


class InitializeStore(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX: give the state, which is zero, its first values, by the run's seed."""


class StoreInitialized(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """MemoryX → chief: they are in the store."""


class ReadState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX on another machine: send these bytes of the store, raw."""

    offset_bytes: int
    nbytes: int


class WriteState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX on another machine: these bytes of the store follow, raw."""

    offset_bytes: int
    nbytes: int


class StateWritten(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """MemoryX → chief: they are in the store."""


class LoadWafer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer: load this Executable; descriptors: those of the store in weight streaming.

    They are those of each of `servers` MemoryX tasks in turn; of one on another machine it is the
    connection to it, or to the SwarmX between: `remote_stores` are the names of these. As many
    AddRing messages follow as `rings` says, in the order of the streamers.

    A run's programs are numbered as they are loaded. The first has the store, of this layout; of
    another the descriptors are the counters of its gradients and weights and its notes, if any.
    `batches_of`: the program whose batches it takes, if not those of rings of its own. disks: of
    stores on this machine, those that lie in a file. system: the wafer's place among the systems.
    cpus: for its kernels.
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
    """Wafer → chief, with descriptors: arena and results; of all but the first program results."""

    programming_time_s: float


class BatchAwaited(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Wafer → chief, during an order: a batch has not come for long.

    streamer: its place in the turn. stage: the number of the stage that it is in, -1 when unknown.
    """

    streamer: int
    waited_s: float
    stage: int = -1


class WeightsAwaited(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Wafer → chief, during an order: MemoryX has not updated or sent weights for long.

    server: which of its tasks.
    """

    waited_s: float
    server: int = 0


class Gathering(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches of steps that take several, whose gradients are added up until the last one.

    before: so many of the first step's were computed in earlier orders. ends: for each batch of the
    order whether it is its step's last one. Of no batch: the step ends with those before.
    """

    before: int
    ends: tuple[bool, ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps that end."""
        return sum(self.ends) if self.ends else 1

    def first(self, batches: int) -> "Gathering":
        """Gathering of the first batches."""
        return Gathering(self.before, self.ends[:batches])

    def batches_of(self, steps: int) -> int:
        """Number of batches of the first steps."""
        ended = 0
        for number, ends in enumerate(self.ends, 1):
            ended += ends
            if ended == steps:
                return number
        return len(self.ends)


class StepOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Up to `count` steps, the first of which is global step `first`.

    Schedules and random draws go by `first`; the next batch is the one after the last that was
    taken. keeps_all: keep the outputs of each step of a training, not only the last one's.
    gathering: the steps are batches, of a plan that `accumulates`, of which a step takes several.
    """

    first: int
    count: int
    keeps_all: bool = False
    gathering: Gathering | None = None


class RunSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer: run these steps of a program, by its number."""

    steps: StepOrder
    program: int = 0


class WeightsChanged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer: the state was written since the last order; weights in slots are old."""


class StreamerUse(msgspec.Struct, frozen=True, array_like=True):
    """Use of one streamer by the wafer in an order's steps.

    streamer: its place in the turn. wait_s: how long the wafer waited for its batches; produce_s:
    how long they took to make. slowest: the number of its slowest stage, -1 when unknown;
    slowest_s: that stage's time a batch.
    """

    streamer: int
    batches: int
    wait_s: float
    produce_s: float
    slowest: int
    slowest_s: float


class StepsDone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Wafer → chief: `done` steps are committed and their results lie in the result slots.

    Of steps that take several batches they are batches, and those of steps that end are committed.

    samples: their valid rows; seconds: how long they took, waits for batches included.
    input: one for each streamer whose batches were awaited. weights_s, first_group_s: how long they
    waited for weights, and for those of a step's first visit; checkpoint_s: for updates that one
    held back.
    finished: the data ended. bad_loss: the step after them gave this loss, and was not applied.
    uncounted: as it has no label that counts, of this number among the batch's counts.
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
    """Peer of its machine → chief, with a descriptor: the ring of what it traces."""


class ReadTrace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → those whose ring it has not: what was traced so far."""


class Traced(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Their answer: a part of a process's spans; the last one is empty."""

    part: bytes


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → all: this run is over; `results` is what the estimator returns in every task."""

    results: Results


AnyMessage = (
    StartStreaming
    | TellOrder
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
    | HoldUpdates
    | UpdatesHeld
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
    | BatchAwaited
    | WeightsAwaited
    | RunSteps
    | StepsDone
    | TraceRing
    | ReadTrace
    | Traced
    | Stop
)
