"""Placement of the store: in memory, or in an unlinked file on a disk."""

import ctypes
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from csrun.base.errors import CsrunError, UsageError
from csrun.base.run_config import RunSettings
from csrun.base.sizes import bytes_in
from csrun.executable import Plan, state_layout, state_views
from csrun.executable.shards import Own, StoreShards
from csrun.runtime.cpus import thread_count
from csrun.runtime.store.pages import FilePages, StorePages
from csrun.runtime.store.residency import (
    Residency,
    least_bytes,
    ranges_of_server,
    shares,
    store_bytes,
)
from csrun.runtime.store.store_initialization import AHEAD, initialize
from csrun.runtime.wire.messages import CheckpointSpace, LoadStore, StoreOnDisk
from csrun.runtime.wire.shared import SharedMemory, reserve

AVAILABLE_SHARE = 2  # share of the free memory for a store on disk, unless set
MEMORIES = 2  # descriptors of a mapped store: its memory, its file
WRITTEN_BACK = 2  # tensors of a restore: the current one, and the next one, which is prefetched
# the second survives a restart of the machine, so it is on a disk
FOLDERS = (tempfile.gettempdir, lambda: "/var/tmp")
_IN_MEMORY = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}  # f_type of statfs(2)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Store:
    """A store: its bytes, their pages in this process, and its disk, if it has one.

    nbytes: size of its `own` groups, in memory and on the disk.
    Shapes: memory.bytes uint8[plan.store.nbytes], initially zero
    """

    memory: SharedMemory
    pages: StorePages
    disk: StoreOnDisk | None
    nbytes: int
    own: Own = None

    @property
    def parts(self) -> tuple[int, int]:
        """Return the descriptors by which others map it: its memory, and the file of evicted bytes.

        Without a file the memory is returned twice.
        """
        memory, file = self.memory.descriptor, self.pages.file
        return memory, memory if file is None else file

    def initialize(self, plan: Plan, seed: int) -> None:
        """Set all of its state, which is zero, to the initial values."""
        layout, pages = state_layout(plan, self.own), self.pages

        def drawn(name: str) -> None:
            place = layout[name]
            pages.write_back(range(place.offset_bytes, place.offset_bytes + place.nbytes))

        state = state_views(plan, self.memory.bytes, self.own)
        initialize(plan, state, seed, self._threads(plan), is_fresh=True, drawn=drawn)

    def _threads(self, plan: Plan) -> int:
        """Return the number of drawing threads; values of a store on disk are in memory until
        written.
        """
        if self.disk is None or self.disk.memory_bytes >= self.nbytes:
            return thread_count()
        layout = state_layout(plan, self.own).values()
        largest = max((place.nbytes for place in layout), default=1)
        lots = least_bytes(plan, self.own) // max(largest, 1)
        return max(1, min(thread_count(), lots - AHEAD - WRITTEN_BACK))

    def close(self) -> None:
        """Free it; a file without a name disappears."""
        self.pages.close()
        self.memory.close()


@dataclass(frozen=True)
class StoreShare:
    """Share of the weights of a MemoryX task.

    later_bytes: size of stores that are created on this machine after this one.
    """

    shards: StoreShards
    server: int = 0
    later_bytes: int = 0

    @staticmethod
    def of(owner: Plan, request: LoadStore) -> "StoreShare":
        """Return the share that a task is asked for; owner: plan that defines the layout of the
        store.
        """
        return StoreShare(
            StoreShards.of(owner, request.servers), request.server, request.later_bytes
        )

    def own(self, plan: Plan) -> Own:
        """Return the task's groups."""
        return self.shards.own(plan, self.server)


def make_store(
    plan: Plan,
    settings: RunSettings,
    checkpoints: CheckpointSpace | None = None,
    part: StoreShare | None = None,
) -> Store:
    """Create a store by the settings; by default in memory if it fits.

    checkpoints: checkpoints that the run writes, for which there must be space next to it.
    part: share of a store with several tasks.

    Raises: CsrunError with the numbers if there is not enough space
    """
    part = part or StoreShare(StoreShards.of(plan, 1))
    own = part.own(plan)
    nbytes, most = store_bytes(plan, own), _most(settings)
    if (disk := disk_of(plan, settings, part)) is not None:
        return _on_disk(plan, disk, part, checkpoints)
    if most is not None and most < (whole := _whole_bytes(plan, part)):
        raise CsrunError(
            f"runconfig.weight_store_memory is {most:,} bytes, a store in memory needs "
            f"{whole:,}: set weight_store: disk, or remove one of the two"
        )
    try:
        memory = SharedMemory.create("store", plan.store.nbytes, ranges_of_server(plan, own))
        return Store(memory, StorePages(), None, nbytes, own)
    except CsrunError as error:
        raise CsrunError(f"{error}: set runconfig.weight_store: disk") from error


def disk_of(
    plan: Plan, settings: RunSettings, part: StoreShare | None = None
) -> StoreOnDisk | None:
    """Return the disk for a store, by the settings and the free memory; None for one in memory."""
    part, most = part or StoreShare(StoreShards.of(plan, 1)), _most(settings)
    nbytes = store_bytes(plan, part.own(plan))
    if not _is_on_disk(plan, settings, part, nbytes, most):
        return None
    return _disk(plan, settings, part, most)


def _most(settings: RunSettings) -> int | None:
    bound = settings.weight_store_memory
    return None if bound is None else bytes_in(bound)


def mapped(plan: Plan, parts: Sequence[int], disk: StoreOnDisk | None, own: Own = None) -> Store:
    """Map a store of another process by its descriptors, which are taken over.

    plan: plan that defines its layout.
    """
    memory_part, file = parts
    memory, nbytes = SharedMemory.over(memory_part), store_bytes(plan, own)
    if disk is None:
        os.close(file)
        return Store(memory, StorePages(), None, nbytes, own)
    pages = FilePages(memory, file, Residency(plan, disk.memory_bytes, own))
    return Store(memory, pages, disk, nbytes, own)


def _on_disk(
    plan: Plan, disk: StoreOnDisk, part: StoreShare, checkpoints: CheckpointSpace | None
) -> Store:
    """Return a store with its resident ranges in memory, and the rest in a file on the disk."""
    own, folder = part.own(plan), Path(disk.folder)
    residency, nbytes = Residency(plan, disk.memory_bytes, own), plan.store.nbytes
    pieces = [piece for used in ranges_of_server(plan, own) for piece in residency.pieces(used)]
    staying, leaving = ([each for each, leaves in pieces if leaves is way] for way in (False, True))
    require_disk_space(folder, sum(map(len, leaving)) + part.later_bytes, checkpoints)
    with ExitStack() as undo:
        file = _file(folder, nbytes, leaving)
        undo.callback(os.close, file)
        try:
            memory = SharedMemory.create("store", nbytes, staying)
        except CsrunError as error:
            raise CsrunError(f"{error}: lower runconfig.weight_store_memory") from error
        undo.callback(memory.close)
        pages = FilePages(memory, file, residency)
        undo.pop_all()
    return Store(memory, pages, disk, store_bytes(plan, own), own)


def _whole_bytes(plan: Plan, part: StoreShare) -> int:
    """Total size of all tasks' stores."""
    owns = (replace(part, server=server).own(plan) for server in range(part.shards.servers))
    return sum(store_bytes(plan, own) for own in owns)


def _is_on_disk(
    plan: Plan, settings: RunSettings, part: StoreShare, nbytes: int, most: int | None
) -> bool:
    if settings.weight_store is not None:
        return settings.weight_store == "disk"
    if most is not None and _whole_bytes(plan, part) > most:
        return True
    return nbytes + part.later_bytes > psutil.virtual_memory().available


def _disk(plan: Plan, settings: RunSettings, part: StoreShare, most: int | None) -> StoreOnDisk:
    own = part.own(plan)
    nbytes = store_bytes(plan, own)
    if most is None:
        free = psutil.virtual_memory().available // AVAILABLE_SHARE
        share = free * nbytes // max(nbytes + part.later_bytes, 1)
        memory_bytes = max(share, least_bytes(plan, own))
    else:
        memory_bytes = shares(plan, most, part.shards)[part.server]  # before the disk is accessed
    return StoreOnDisk(str(_folder(settings.weight_store_dir)), min(memory_bytes, nbytes))


def _folder(wanted: str | None) -> Path:
    """Return the folder of the settings, or one for temporary files that is on a disk.

    Raises: UsageError for a folder that is missing, or in memory
    """
    # /tmp is in memory on many machines.
    candidates = [Path(find()) for find in FOLDERS] if wanted is None else [Path(wanted)]
    kinds = {folder: _memory_kind(folder) for folder in candidates}
    found = next((folder for folder, kind in kinds.items() if kind is None), None)
    if found is None:
        folder, kind = next(iter(kinds.items()))
        raise UsageError(
            f"runconfig.weight_store_dir: {folder} is on a memory file system ({kind}): choose a "
            "folder on disk"
        )
    if not found.is_dir():
        raise UsageError(
            f"runconfig.weight_store_dir: {found} is not a folder: create it, or choose another"
        )
    return found


def _memory_kind(folder: Path) -> str | None:
    """Return the file system of a folder if it is in memory."""
    found = ctypes.create_string_buffer(512)  # struct statfs; f_type is its first word
    if _libc.statfs(os.fsencode(folder), found):
        return None
    return _IN_MEMORY.get(int.from_bytes(found.raw[:4], "little"))


def require_disk_space(folder: Path, nbytes: int, checkpoints: CheckpointSpace | None) -> None:
    """Check that the disk has space for the store, and for the checkpoints of the run.

    Raises: CsrunError with the bytes needed and free
    """
    needs = [(folder, nbytes, f"{nbytes:,} for the weight store")]
    if checkpoints is not None and (model_dir := Path(checkpoints.folder)).is_dir():
        what = f"{checkpoints.nbytes:,} for {checkpoints.count} checkpoints in {model_dir}"
        needs.append((model_dir, checkpoints.nbytes, what))
    by_disk: dict[int, list[tuple[Path, int, str]]] = {}
    for need in needs:
        # Store and checkpoints may be on one disk, which then needs space for both.
        by_disk.setdefault(os.stat(need[0]).st_dev, []).append(need)
    for own in by_disk.values():
        needed, free = sum(size for _, size, _ in own), _free_bytes(own[0][0])
        if needed > free:
            raise CsrunError(
                f"the disk of {own[0][0]} has {free:,} bytes free, {needed:,} are needed: "
                f"{' and '.join(words for *_, words in own)}: free some space, set "
                "runconfig.weight_store_dir, or lower keep_checkpoint_max"
            )


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    # f_bavail, not f_bfree: blocks reserved for root are not available.
    return found.f_bavail * found.f_frsize


def _file(folder: Path, nbytes: int, ranges: Sequence[range]) -> int:
    """Create an unnamed file of this size with space for some ranges; it disappears when closed."""
    with ExitStack() as undo:
        try:
            descriptor = _unnamed(folder)
            undo.callback(os.close, descriptor)
            reserve(descriptor, nbytes, ranges)
        except OSError as error:
            raise CsrunError(
                f"the weight store needs {sum(map(len, ranges)):,} bytes in {folder}, "
                f"{_free_bytes(folder):,} are free: {error.strerror}: free some space, or set "
                "runconfig.weight_store_dir"
            ) from error
        undo.pop_all()
    return descriptor


def _unnamed(folder: Path) -> int:
    # O_TMPFILE first: a process killed between mkstemp and unlink would leave its file.
    with suppress(OSError):
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    # not supported by this file system
    descriptor, name = tempfile.mkstemp(prefix="csrun-store-", dir=folder)
    os.unlink(name)
    return descriptor
