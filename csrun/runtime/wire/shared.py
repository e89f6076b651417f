"""Shared memory and counters of one machine's processes, passed as descriptors.

Memory is a memfd, without a name. A counter is an eventfd: one process raises it, another waits for
it asleep, optionally after a short busy wait. The kernel holds the count, and a waiter reads all of
it at once, so that in a steady flow most takes need no system call.
"""

import ctypes
import logging
import mmap
import os
import select
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

import numpy as np
import psutil

from csrun.base.errors import CsrunError
from csrun.executable.arrays import Bytes
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import AnyMessage, Stop, UpdatesPaused
from csrun.runtime.wire.run_time_clock import poll_awake, poll_briefly

GIVEN_AWAY = -1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED, _MAP_FIXED = ctypes.c_void_p(-1).value, 0x10  # of mmap(2)


class SharedMemory:
    """Block of memory that other processes can map; freed when the last of them closes it.

    Shapes: bytes uint8[nbytes], initially zero
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.descriptor = descriptor
        self.bytes: Bytes = _mapped(descriptor, max(nbytes, 1))[:nbytes]

    @staticmethod
    def create(name: str, nbytes: int, ranges: Sequence[range] | None = None) -> "SharedMemory":
        """Allocate memory; `name` is only visible in /proc; ranges: the parts that are used, None
        for all.

        Raises: CsrunError if the machine does not have enough
        """
        ranges = [range(nbytes)] if ranges is None else ranges
        used, available = sum(map(len, ranges)), psutil.virtual_memory().available
        if used > available:
            raise CsrunError(f"{name} needs {used:,} bytes of memory, {available:,} are free")
        descriptor = os.memfd_create(f"csrun-{name}", os.MFD_CLOEXEC)
        try:
            reserve(descriptor, nbytes, ranges)
            return SharedMemory(descriptor, nbytes)
        except OSError as error:
            os.close(descriptor)
            raise CsrunError(f"{name} needs {used:,} bytes of memory: {error}") from error

    @staticmethod
    def over(descriptor: int) -> "SharedMemory":
        """Map memory received over a channel, and keep its descriptor."""
        return SharedMemory(descriptor, os.fstat(descriptor).st_size)

    @staticmethod
    def attach(descriptor: int) -> "SharedMemory":
        """Map memory received over a channel, and close its descriptor; the mapping stays."""
        memory = SharedMemory.over(descriptor)
        os.close(memory.detach_descriptor())
        return memory

    def detach_descriptor(self) -> int:
        """Return the descriptor, which the caller owns from now on."""
        descriptor, self.descriptor = self.descriptor, GIVEN_AWAY
        return descriptor

    def resized(self, nbytes: int) -> "SharedMemory":
        """Return the same memory, extended to this size; earlier mappings stay valid.

        Raises: CsrunError if the machine does not have enough
        """
        available, more = psutil.virtual_memory().available, nbytes - len(self.bytes)
        if more > available:
            raise CsrunError(
                f"cannot allocate {more:,} more bytes of memory: {available:,} are available"
            )
        try:
            os.posix_fallocate(self.descriptor, 0, nbytes)
            return SharedMemory(os.dup(self.descriptor), nbytes)
        except OSError as error:
            raise CsrunError(f"cannot allocate {nbytes:,} bytes of memory: {error}") from error

    def map_file(self, descriptor: int, ranges: Iterable[range]) -> None:
        """Map ranges of a file over the same offsets of this memory, in whole pages.

        This only affects this mapping; another process's mapping must do the same.
        """
        for part in ranges:
            _map(self.bytes.ctypes.data + part.start, len(part), descriptor, part.start)

    def close(self) -> None:
        """Close the descriptor; the mapping lives as long as arrays over it do."""
        if self.descriptor != GIVEN_AWAY:
            os.close(self.detach_descriptor())
        del self.bytes


def reserve(descriptor: int, nbytes: int, ranges: Iterable[range]) -> None:
    """Set the size of a file, and allocate space for some ranges.

    Raises: OSError
    """
    os.truncate(descriptor, max(nbytes, 1))
    for part in ranges:
        # Allocated now: otherwise the first write to a page fails by SIGBUS if there is no space.
        os.posix_fallocate(descriptor, part.start, max(len(part), 1))


def _mapped(descriptor: int, nbytes: int) -> Bytes:
    """Map a file's bytes, shared, as long as arrays over them exist.

    Not by mmap.mmap, which keeps a duplicate of the descriptor: a wafer has one such mapping for
    each of its streamers.
    """
    address = _map(None, nbytes, descriptor, 0)
    mapped = (ctypes.c_uint8 * nbytes).from_address(address)
    # Not at exit, when a thread may still read it: the kernel unmaps it then.
    weakref.finalize(mapped, _libc.munmap, address, nbytes).atexit = False
    return np.ctypeslib.as_array(mapped)


def _map(at: int | None, nbytes: int, descriptor: int, offset: int) -> int:
    """Map bytes of a file, replacing the mapping at an address if one is given."""
    # MAP_FIXED replaces the mapping at the address, so only our own memory is used.
    flags = mmap.MAP_SHARED if at is None else mmap.MAP_SHARED | _MAP_FIXED
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(at, nbytes, protection, flags, descriptor, offset)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(address)


log = logging.getLogger("csrun")

STALL_S = 30.0  # seconds; a wait of this length is logged
BRIEF_S = 300e-6  # a small group's update takes less; to sleep and wake up takes 30 to 60 us
OWN_WORD_S = 1.0  # the awaited peer may wait itself; its own report comes first

Overdue = Callable[[float], None]


def peer_overdue(name: str, task: str) -> Overdue:
    """Warn about a peer that does not answer a request of the chief."""
    return lambda seconds: log.warning(
        f"The chief has waited for {name} to {task} for {seconds:.0f} s"
    )


class EndedByChief(Exception):  # noqa: N818  an event, not an error
    """The chief ended the run while this role was waiting; `stop` is its last message."""

    def __init__(self, stop: Stop) -> None:
        super().__init__("the chief ended the run")
        self.stop = stop


class Counter:
    """Counter shared by descriptor. `descriptor` is taken over."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @staticmethod
    def create() -> "Counter":
        """Create a counter at zero."""
        # EFD_NONBLOCK: a waiter polls the counter together with its channel to the chief.
        return Counter(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def raise_by(self, count: int = 1) -> None:
        """Add to the count and wake the waiter."""
        os.eventfd_write(self.descriptor, count)

    def close(self) -> None:
        os.close(self.descriptor)


class Inbox:
    """Incoming messages of a working role, read when it checks; a Stop interrupts it.

    Raises: EndedByChief at a Stop, PeerLost if the chief is lost
    """

    def __init__(self, control: Channel) -> None:
        self.control = control
        self._kept: deque[AnyMessage] = deque()
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)

    @property
    def has_stored(self) -> bool:
        """Return whether stored messages exist, which do not make a descriptor readable."""
        return bool(self._kept)

    def take(self) -> AnyMessage | None:
        """Return the next message that has arrived, if there is one."""
        if not self._kept and self._poll.poll(0):
            self.keep()
        return self._kept.popleft() if self._kept else None

    def keep(self) -> None:
        """Wait for a message and store it."""
        message, _ = self.control.receive()
        if isinstance(message, Stop):
            raise EndedByChief(message)
        self._kept.append(message)


class StallWatch:
    """Warns about a wait that does not end: after `STALL_S`, and each time the duration has
    doubled.

    after_s: another initial duration than STALL_S.
    """

    def __init__(self, overdue: Overdue, after_s: float | None = None) -> None:
        self._overdue = overdue
        self._began_s = monotonic()
        self._next_s = STALL_S if after_s is None else after_s

    @staticmethod
    def of_reporter(overdue: Overdue, waited_s: float = 0.0) -> "StallWatch":
        """Return the watch for a peer that reports its own waits; waited_s: duration in its last
        report.

        Its next report is due when that has doubled, or after STALL_S without a report. A peer that
        is silent for longer neither waits nor works, or works for very long.
        """
        return StallWatch(overdue, (waited_s or STALL_S) + OWN_WORD_S)

    def check(self) -> float:
        """Warn if it is time to; return the seconds until the next check."""
        waited_s = monotonic() - self._began_s
        if waited_s >= self._next_s:
            self._next_s *= 2
            self._overdue(waited_s)
        return self._next_s - waited_s

    def poll(self, poll: select.poll) -> list[tuple[int, int]]:
        """Return the ready descriptors, without a timeout."""
        while True:
            if ready := poll_awake(poll, max(0.001, self.check())):
                return ready


class UpdatePauseCounter:
    """Counter for updates that a checkpoint holds back; a new one for each checkpoint."""

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._counter: Counter | None = None

    def begin(self) -> Callable[[], None]:
        """Reply to the chief with a counter; return its waiting side."""
        self.close()
        self._counter = Counter.create()
        self._control.send(UpdatesPaused(), (self._counter.descriptor,))
        return Waiter(self._counter, self._control).take

    def close(self) -> None:
        if self._counter is not None:
            self._counter.close()


class Waiter:
    """Waiting side of a counter, which also notices the end of the run.

    While it waits it listens to `control`, the channel to the chief: a Stop ends the wait as
    EndedByChief, a lost chief as PeerLost.

    overdue: called with a wait that does not end.
    brief_s: busy-waits for this long first, for waits that may be shorter than sleeping and waking
        up.
    """

    def __init__(
        self,
        counter: Counter,
        control: Channel,
        overdue: Overdue | None = None,
        brief_s: float = 0.0,
    ) -> None:
        self._overdue, self._brief_s = overdue, brief_s
        self._descriptor = counter.descriptor
        self._control = control
        self._available = 0
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._poll.register(control.fileno(), select.POLLIN)

    @property
    def ready_count(self) -> int:
        """Number that may be taken at once, of those read; more may have arrived since."""
        return self._available

    def ready(self) -> int:
        """Number that may be taken at once, as far as known; 0 only if there is none."""
        if not self._available:
            try:
                self._available = os.eventfd_read(self._descriptor)
            except BlockingIOError:
                return 0
        return self._available

    def take(self) -> None:
        """Take one from the count, waiting for it."""
        while not self._available:
            try:
                self._available = os.eventfd_read(self._descriptor)
            except BlockingIOError:
                self._wait()
        self._available -= 1

    def _wait(self) -> None:
        for descriptor, _ in self._ready():
            if descriptor == self._control.fileno():
                message, _ = self._control.expect(Stop)
                raise EndedByChief(message)

    def _ready(self) -> list[tuple[int, int]]:
        """Return the ready descriptors, without a timeout."""
        if self._brief_s and (ready := poll_briefly(self._poll, self._brief_s)):
            return ready
        return StallWatch(self._overdue).poll(self._poll) if self._overdue else self._poll.poll()
