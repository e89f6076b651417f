"""The pages of a store on disk, as a process that has mapped it uses them.

What stays in memory lies in memory alone; what leaves it lies in a file, over the same addresses.
That is fetched ahead of its use, and written back and let go after it, in threads of their own: a
disk whose queue is full lets nobody on who asks it for more. Pages that another process has mapped
are let go by the last one that does it, so each lets go of its own.
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
_FAILED = (errno.EIO, errno.ENOSPC, errno.EDQUOT)  # of what has been written
# Of more at a call the kernel reads no more than the disk's read-ahead is set to.
_FETCHED_BYTES = 128 << 10
_WRITE_AND_WAIT = 1 | 2 | 4  # sync_file_range(2): wait before, write, wait after

Ranges = Sequence[range]  # of the store's bytes


class StorePages:
    """The pages of a store that stays in memory: there is nothing to do."""

    file: int | None = None

    def of(self, plan: Plan) -> "GroupPages":
        """Pages of a program's groups."""
        return GroupPages()

    def let_go(self, used: range) -> None:
        """These bytes have been read."""

    def write_back(self, used: range) -> None:
        """These bytes have been written."""

    def close(self) -> None:
        """Wait for what is under way."""


class GroupPages:
    """The pages of a program's groups, where all of them stay."""

    def fetch_weights(self, group: int) -> None:
        """The wafer reads the group's weights soon."""

    def fetch_state(self, group: int) -> None:
        """Fetch the state of the group whose update comes next."""

    def await_state(self, group: int) -> None:
        """Wait for the state of the group whose update comes now."""

    def has_read(self, group: int, is_updated_next: bool) -> None:
        """The wafer has read the group's weights; MemoryX will next, or nobody but the wafer."""

    def has_delivered(self, group: int) -> None:
        """The wafer has written its gradients."""

    def has_measured(self, group: int) -> None:
        """Release the group: its gradients wait for the joint update, or the next micro-batch."""

    def has_updated(self, group: int) -> None:
        """Release the group after its update."""


class FilePages(StorePages):
    """The pages of a store of which a residency says what leaves memory, and lies in a file.

    file: a descriptor, which is taken over. memory: gets the file's bytes in their place
    """

    file: int

    def __init__(self, memory: SharedMemory, file: int, residency: Residency) -> None:
        memory.lay(file, residency.leaving(range(len(memory.bytes))))
        self._address = memory.bytes.ctypes.data
        self.file = file
        self._residency = residency
        self._sync = sync_of(file)
        # One thread each: a disk that is slow to write must not hold up what is read next.
        self._reading = ThreadPoolExecutor(1, "read-ahead")
        self._writing = ThreadPoolExecutor(1, "write-back")
        self._under_way: deque[Future[None]] = deque()

    def of(self, plan: Plan) -> GroupPages:
        """Pages of a program's groups."""
        return _FileGroupPages(self, plan)

    def leaving(self, used: Iterable[range]) -> Ranges:
        """The parts of these bytes that do not stay."""
        return [part for each in used for part in self._residency.leaving(each)]

    def fetch(self, leaving: Ranges) -> "Future[None]":
        """Have them read from the disk; it is done when the disk has been asked for the last."""
        return self._reading.submit(self._fetch, leaving)

    def let_go(self, used: range) -> None:
        """These bytes have been read."""
        self.drop(self.leaving([used]))

    def write_back(self, used: range) -> None:
        """These bytes have been written."""
        self.flush(self.leaving([used]))

    def flush(self, leaving: Ranges) -> None:
        """Write them back while the next is fetched, then let go of them; one lot at a time.

        Raises: CsrunError when the disk has failed at the lot before
        """
        # One lot at a time bounds what is in memory for the disk to write.
        while self._under_way:
            self._await()
        if leaving:
            self._under_way.append(self._writing.submit(self._flush, leaving))

    def unmap(self, leaving: Ranges) -> None:
        """Have them mapped here no more, until they are used again."""
        for pages in map(whole_pages, leaving):
            _libc.madvise(self._address + pages.start, len(pages), mmap.MADV_DONTNEED)

    def drop(self, leaving: Ranges) -> None:
        """Unmap them here, and give back their memory where nobody else has them mapped."""
        self.unmap(leaving)
        for pages in map(whole_pages, leaving):
            if pages:  # a length of 0 would mean all of the file
                os.posix_fadvise(self.file, pages.start, len(pages), os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Wait for what is under way."""
        self._reading.shutdown(cancel_futures=True)
        self._writing.shutdown()
        os.close(self.file)
        for each in self._under_way:
            with suppress(OSError):  # the run is over: nobody reads it again
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
            # Written first: POSIX_FADV_DONTNEED passes over dirty pages.
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
        # Of a mapped page that is not there yet the kernel would read few around it.
        if group not in self._coming:  # the first of all
            self.fetch_state(group)
        self._await(group)

    def has_read(self, group: int, is_updated_next: bool) -> None:
        self._await(group)  # else it came again after this
        # Not mapped here in any case: the one that lets go of them last must be the only one.
        let_go = self._pages.unmap if is_updated_next else self._pages.drop
        let_go(self._weights[group])

    def has_delivered(self, group: int) -> None:
        self._pages.drop(self._gradients[group])

    def has_measured(self, group: int) -> None:
        self._pages.flush(self._gradients[group])

    def has_updated(self, group: int) -> None:
        self._pages.flush(self._state[group])

    def _fetch(self, group: int, leaving: Ranges) -> None:
        if leaving:
            self._coming[group] = self._pages.fetch(leaving)

    def _await(self, group: int) -> None:
        if (coming := self._coming.pop(group, None)) is not None:
            coming.result()


def disk_failed(error: OSError) -> CsrunError:
    """Error of a run whose store cannot be read from or written to its disk."""
    return CsrunError(
        f"weight store: disk I/O failed: {error.strerror}: choose another folder with "
        "runconfig.weight_store_dir"
    )


def sync_of(descriptor: int) -> Callable[[range], None]:
    """A function that has bytes of a file on its disk when it returns; it raises OSError."""
    found = ctypes.create_string_buffer(512)  # struct statfs; f_type is its first word
    _libc.fstatfs(descriptor, found)
    if int.from_bytes(found.raw[:4], "little") == _OVERLAYFS:  # it does so for no pages at all
        return lambda _: os.fdatasync(descriptor)

    def sync(part: range) -> None:
        if _libc.sync_file_range(descriptor, part.start, len(part), _WRITE_AND_WAIT):
            if (number := ctypes.get_errno()) in _FAILED:  # told once: fdatasync would succeed
                raise OSError(number, os.strerror(number))
            os.fdatasync(descriptor)  # a file system that does not write parts

    return sync
