"""Pages of a store on disk, as used by a process that maps it.

Resident ranges are in memory only; the others are in a file, mapped at the same addresses. They are
prefetched before their use, then written back and evicted, in separate threads, since a full disk
queue blocks the caller. A page that several processes map is only freed when the last of them
evicts it, so each process evicts its own mappings.
"""

import ctypes
import errno
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from csrun.base.errors import CsrunError
from csrun.executable import Plan
from csrun.runtime.store.residency import (
    Residency,
    spilled_gradients,
    state_of,
    weights_of,
    whole_pages,
)
from csrun.runtime.wire.shared import SharedMemory

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_OVERLAYFS = 0x794C7630  # f_type of statfs(2)
_FAILED = (errno.EIO, errno.ENOSPC, errno.EDQUOT)  # bytes written before a flush
# with more per call the kernel reads only as much as the disk's read-ahead setting
_FETCHED_BYTES = 128 << 10
_WRITE_AND_WAIT = 1 | 2 | 4  # sync_file_range(2): wait before, write, wait after

Ranges = Sequence[range]  # ranges of the store's bytes


class StorePages:
    """Pages of a store in memory: all operations do nothing."""

    file: int | None = None

    def of(self, plan: Plan) -> "GroupPages":
        """Return the pages of a program's groups."""
        return GroupPages()

    def evict(self, used: range) -> None:
        """Note that these bytes have been read."""

    def write_back(self, used: range) -> None:
        """Note that these bytes have been written."""

    def close(self) -> None:
        """Wait for running operations."""


class GroupPages:
    """Pages of a program's groups in a store in memory."""

    def fetch_weights(self, group: int) -> None:
        """Prefetch the group's weights for the wafer."""

    def fetch_state(self, group: int) -> None:
        """Prefetch the state of the group whose update comes next."""

    def await_state(self, group: int) -> None:
        """Wait for the state of the group whose update comes now."""

    def mark_read(self, group: int, is_updated_next: bool) -> None:
        """Note that the wafer has read the group's weights."""

    def mark_delivered(self, group: int) -> None:
        """Note that the wafer has written the group's gradients."""

    def mark_measured(self, group: int) -> None:
        """Release the group: its gradients wait for the joint update, or for the next
        micro-batch.
        """

    def mark_updated(self, group: int) -> None:
        """Release the group after its update."""


class FilePages(StorePages):
    """Pages of a store whose non-resident ranges are in a file.

    file: descriptor, which is taken over.
    memory: mapping in which the file's bytes are mapped.
    """

    file: int

    def __init__(self, memory: SharedMemory, file: int, residency: Residency) -> None:
        memory.map_file(file, residency.leaving(range(len(memory.bytes))))
        self._address = memory.bytes.ctypes.data
        self.file = file
        self._residency = residency
        self._sync = sync_of(file)
        # One thread each: a disk that is slow to write must not hold up what is read next.
        self._reading = ThreadPoolExecutor(1, "read-ahead")
        self._writing = ThreadPoolExecutor(1, "write-back")
        self._under_way: deque[Future[None]] = deque()

    def of(self, plan: Plan) -> GroupPages:
        """Return the pages of a program's groups."""
        return _FileGroupPages(self, plan)

    def leaving(self, used: Iterable[range]) -> Ranges:
        """Return the parts of these bytes that are not resident."""
        return [part for each in used for part in self._residency.leaving(each)]

    def fetch(self, leaving: Ranges) -> "Future[None]":
        """Start to read them from the disk; returns when the last read has been requested."""
        return self._reading.submit(self._fetch, leaving)

    def evict(self, used: range) -> None:
        """Evict these bytes, which have been read."""
        self.drop(self.leaving([used]))

    def write_back(self, used: range) -> None:
        """Write these bytes back and evict them."""
        self.flush(self.leaving([used]))

    def flush(self, leaving: Ranges) -> None:
        """Write bytes back while the next are read, then evict them; one range at a time.

        Raises: CsrunError if the disk failed at the previous range
        """
        # One range at a time bounds the memory that waits for the disk.
        while self._under_way:
            self._await()
        if leaving:
            self._under_way.append(self._writing.submit(self._flush, leaving))

    def unmap(self, leaving: Ranges) -> None:
        """Unmap them here until they are used again."""
        for pages in map(whole_pages, leaving):
            _libc.madvise(self._address + pages.start, len(pages), mmap.MADV_DONTNEED)

    def drop(self, leaving: Ranges) -> None:
        """Unmap them here, and free their memory unless another process maps them."""
        self.unmap(leaving)
        for pages in map(whole_pages, leaving):
            if pages:  # a length of 0 would mean all of the file
                os.posix_fadvise(self.file, pages.start, len(pages), os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Wait for running operations."""
        self._reading.shutdown(cancel_futures=True)
        self._writing.shutdown()
        os.close(self.file)
        for each in self._under_way:
            with suppress(OSError):  # the run is over: it is not read again
                each.result()

    def _await(self) -> None:
        try:
            self._under_way.popleft().result()
        except OSError as error:
            raise disk_failed(error) from error

    def _fetch(self, leaving: Ranges) -> None:
        for part in leaving:
            for start in range(part.start, part.stop, _FETCHED_BYTES):
                nbytes = min(_FETCHED_BYTES, part.stop - start)
                os.posix_fadvise(self.file, start, nbytes, os.POSIX_FADV_WILLNEED)

    def _flush(self, leaving: Ranges) -> None:
        for part in leaving:
            # Written first: POSIX_FADV_DONTNEED skips dirty pages.
            self._sync(part)
        self.drop(leaving)


class _FileGroupPages(GroupPages):
    def __init__(self, pages: FilePages, plan: Plan) -> None:
        self._pages = pages
        groups = plan.groups
        self._weights = [pages.leaving([weights_of(plan, group)]) for group in groups]
        self._state = [pages.leaving(state_of(plan, group)) for group in groups]
        self._gradients = [pages.leaving(spilled_gradients(plan, group)) for group in groups]
        self._coming: dict[int, Future[None]] = {}

    def fetch_weights(self, group: int) -> None:
        self._fetch(group, self._weights[group])

    def fetch_state(self, group: int) -> None:
        self._fetch(group, self._state[group])

    def await_state(self, group: int) -> None:
        # For a mapped page that is not resident the kernel would read only a small neighbourhood.
        if group not in self._coming:  # of the first range
            self.fetch_state(group)
        self._await(group)

    def mark_read(self, group: int, is_updated_next: bool) -> None:
        self._await(group)  # otherwise it was mapped again after this
        # Not mapped here in any case: the process that evicts them last must be the only one.
        evict = self._pages.unmap if is_updated_next else self._pages.drop
        evict(self._weights[group])

    def mark_delivered(self, group: int) -> None:
        self._pages.drop(self._gradients[group])

    def mark_measured(self, group: int) -> None:
        self._pages.flush(self._gradients[group])

    def mark_updated(self, group: int) -> None:
        self._pages.flush(self._state[group])

    def _fetch(self, group: int, leaving: Ranges) -> None:
        if leaving:
            self._coming[group] = self._pages.fetch(leaving)

    def _await(self, group: int) -> None:
        if (coming := self._coming.pop(group, None)) is not None:
            coming.result()


def disk_failed(error: OSError) -> CsrunError:
    """Return the error of a run whose store cannot be read from or written to its disk."""
    return CsrunError(
        f"weight store: disk I/O failed: {error.strerror}: choose another folder with "
        "runconfig.weight_store_dir"
    )


def sync_of(descriptor: int) -> Callable[[range], None]:
    """Return a function that syncs a range of a file to disk; it raises OSError."""
    found = ctypes.create_string_buffer(512)  # struct statfs; f_type is its first word
    _libc.fstatfs(descriptor, found)
    if int.from_bytes(found.raw[:4], "little") == _OVERLAYFS:  # there it has no effect
        return lambda _: os.fdatasync(descriptor)

    def sync(part: range) -> None:
        if _libc.sync_file_range(descriptor, part.start, len(part), _WRITE_AND_WAIT):
            # reported only once: fdatasync would succeed
            if (number := ctypes.get_errno()) in _FAILED:
                raise OSError(number, os.strerror(number))
            os.fdatasync(descriptor)  # a file system that cannot sync ranges

    return sync
