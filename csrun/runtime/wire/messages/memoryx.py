"""Messages between the chief and MemoryX: its store, initial values, checkpoints."""

import msgspec

from csrun.base.run_config import RunSettings
from csrun.executable import StoreLayout


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


class PauseUpdates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX, or a wafer with the store: a checkpoint is copied from now on.

    An update waits until the values that it overwrites are copied.
    """


class UpdatesPaused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Reply to PauseUpdates, with a descriptor: the counter of copied tensors."""


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
