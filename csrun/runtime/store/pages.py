"""The pages of a store on disk, as a process that has mapped it uses them.

They are fetched ahead of their use; what does not stay is written back and let go behind it. Pages
that another process has mapped are let go by the last one that does it, so each lets go of its own.
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
from csrun.executable.bind import Bytes
from csrun.runtime.store.residency import Residency, spilled_gradients, state_of, weights_of

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_OVERLAYFS = 0x794C7630  # f_type of statfs(2)
_FAILED = (errno.EIO, errno.ENOSPC, errno.EDQUOT)  # of what has been written
_WRITE_AND_WAIT = 1 | 2 | 4  # sync_file_range(2): wait before, write, wait after

Ranges = Sequence[range]  # of the store's bytes


class StorePages:
    """The pages of a store that stays in memory: there is nothing to do."""

    def of(self, plan: Plan) -> "GroupPages":
        """Those of a program's groups."""
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
        """Its update comes next."""

    def has_read(self, group: int, is_updated_next: bool) -> None:
        """The wafer has read the group's weights; MemoryX will next, or nobody but the wafer."""

    def has_delivered(self, group: int) -> None:
        """The wafer has written its gradients."""

    def has_measured(self, group: int) -> None:
        """Its gradients wait for the update of all, or for those of the next micro-batch."""

    def has_updated(self, group: int) -> None:
        """Its update is made."""


class FilePages(StorePages):
    """The pages of a store in a file, of which a residency says what leaves memory.

    descriptor: the caller's, open as long as this is.
    """

    def __init__(self, descriptor: int, memory: Bytes, residency: Residency) -> None:
        self._descriptor = descriptor
        self._memory = memory
        self._residency = residency
        self._sync = sync_of(descriptor)
        self._thread = ThreadPoolExecutor(1, "write-back")
        self._under_way: deque[Future[None]] = deque()

    def of(self, plan: Plan) -> GroupPages:
        """Those of a program's groups."""
        return _FileGroupPages(self, plan)

    def leaving(self, used: Iterable[range]) -> Ranges:
        """The parts of these bytes that do not stay."""
        return [part for each in used for part in self._residency.leaving(each)]

    def fetch(self, leaving: Ranges) -> None:
        """Have them read from the disk, and do not wait for it."""
        for part in leaving:
            os.posix_fadvise(self._descriptor, part.start, len(part), os.POSIX_FADV_WILLNEED)

    def let_go(self, used: range) -> None:
        """These bytes have been read."""
        self.drop(self.leaving([used]))

    def write_back(self, used: range) -> None:
        """These bytes have been written."""
        self.flush(self.leaving([used]))

    def flush(self, leaving: Ranges) -> None:
        """Write them back beside what comes next, then let go of them; one lot at a time.

        Raises: CsrunError when the disk has failed at the lot before
        """
        while self._under_way:
            self._await()
        if leaving:
            self._under_way.append(self._thread.submit(self._flush, leaving))

    def unmap(self, leaving: Ranges) -> None:
        """Have them mapped here no more, until they are used again."""
        for pages in map(_whole_pages, leaving):
            address = self._memory.ctypes.data + pages.start
            _libc.madvise(address, len(pages), mmap.MADV_DONTNEED)

    def drop(self, leaving: Ranges) -> None:
        """Unmap them here, and give back their memory where nobody else has them mapped."""
        self.unmap(leaving)
        for pages in map(_whole_pages, leaving):
            if pages:  # a length of 0 would mean all of the file
                os.posix_fadvise(self._descriptor, pages.start, len(pages), os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Wait for what is under way."""
        self._thread.shutdown()
        for each in self._under_way:
            with suppress(OSError):  # the run is over: nobody reads it again
                each.result()

    def _await(self) -> None:
        try:
            self._under_way.popleft().result()
        except OSError as error:
            raise disk_failed(error) from error

    def _flush(self, leaving: Ranges) -> None:
        for part in leaving:
            self._sync(part)
        self.drop(leaving)


class _FileGroupPages(GroupPages):
    def __init__(self, pages: FilePages, plan: Plan) -> None:
        self._pages = pages
        groups = plan.groups
        self._weights = [pages.leaving([weights_of(plan, group)]) for group in groups]
        self._state = [pages.leaving(state_of(plan, group)) for group in groups]
        self._gradients = [pages.leaving(spilled_gradients(plan, group)) for group in groups]

    def fetch_weights(self, group: int) -> None:
        self._pages.fetch(self._weights[group])

    def fetch_state(self, group: int) -> None:
        self._pages.fetch(self._state[group])

    def has_read(self, group: int, is_updated_next: bool) -> None:
        # Not mapped here in any case: the one that lets go of them last must be the only one.
        let_go = self._pages.unmap if is_updated_next else self._pages.drop
        let_go(self._weights[group])

    def has_delivered(self, group: int) -> None:
        self._pages.drop(self._gradients[group])

    def has_measured(self, group: int) -> None:
        self._pages.flush(self._gradients[group])

    def has_updated(self, group: int) -> None:
        self._pages.flush(self._state[group])


def _whole_pages(part: range) -> range:
    """The bytes of the pages of which all is in a part."""
    first, end = -(-part.start // mmap.PAGESIZE), part.stop // mmap.PAGESIZE
    return range(first * mmap.PAGESIZE, max(first, end) * mmap.PAGESIZE)


def disk_failed(error: OSError) -> CsrunError:
    """What a run ends with when the store is not on its disk as it should be."""
    return CsrunError(
        f"the weight store cannot be written to its disk, or read from it: {error.strerror}: "
        "choose another folder with runconfig.weight_store_dir"
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
