"""Messages between the chief and a wafer: its programs, and stalls during an order."""

import msgspec

from csrun.base.run_config import TraceSteps
from csrun.executable import StoreLayout
from csrun.runtime.wire.messages.memoryx import StoreOnDisk


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
    parts: number of parts of a batch, each in a slot of its own ring.
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
    parts: int = 1


class AddRing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer, with the descriptors of one streamer's ring: memory, filled, free."""


class WaferReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Wafer → chief, with descriptors: arena and results; after the first program only results."""

    programming_time_s: float


class UnloadProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer and MemoryX: no further order is for this program.

    Other programs may still use its batches.
    """

    program: int


class WeightsChanged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer: the state was written since the last order; weights in slots are stale."""


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
