"""Shared memory and counters of one machine's processes, passed as descriptors.

Memory is a memfd, without a name. A counter is an eventfd, which one process raises and another
waits for without using the processor, but for a moment where it is to wait briefly: the kernel
holds the count, and a waiter takes all of it in one read, so that in a steady flow most takes need
no system call at all.
"""

import ctypes
import logging
import mmap
import os
import select
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic

import numpy as np
import psutil

from csrun.base.errors import CsrunError
from csrun.executable.arrays import Bytes
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import AnyMessage, Stop, UpdatesHeld
from csrun.runtime.wire.run_time_clock import poll_awake, poll_briefly

GIVEN_AWAY = -1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED, _MAP_FIXED = ctypes.c_void_p(-1).value, 0x10  # of mmap(2)


class SharedMemory:
    """A block of memory that another process can map; it is gone when the last of them is.

    Shapes: bytes uint8[nbytes], zero at first
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.descriptor = descriptor
        self.bytes: Bytes = _mapped(descriptor, max(nbytes, 1))[:nbytes]

    @staticmethod
    def create(name: str, nbytes: int, ranges: Sequence[range] | None = None) -> "SharedMemory":
        """New memory; `name` is only seen in /proc. ranges: what is used of it, None for all.

        Raises: CsrunError when the machine does not have as much.
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
        """Map memory that came over a channel, and keep its descriptor."""
        return SharedMemory(descriptor, os.fstat(descriptor).st_size)

    @staticmethod
    def attach(descriptor: int) -> "SharedMemory":
        """Map memory that came over a channel, whose descriptor is closed: the mapping stays."""
        memory = SharedMemory.over(descriptor)
        os.close(memory.hand_over())
        return memory

    def hand_over(self) -> int:
        """The descriptor, which is the caller's from now on."""
        descriptor, self.descriptor = self.descriptor, GIVEN_AWAY
        return descriptor

    def grown(self, nbytes: int) -> "SharedMemory":
        """The same memory with more after it, up to so many bytes; earlier mappings stay.

        Raises: CsrunError when the machine does not have as much.
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

    def lay(self, descriptor: int, ranges: Iterable[range]) -> None:
        """Have bytes of a file in the place of these of its own, at the same offsets: whole pages.

        So it is for who has this mapping; another one of the memory must do it, too.
        """
        for part in ranges:
            _map(self.bytes.ctypes.data + part.start, len(part), descriptor, part.start)

    def close(self) -> None:
        """Close the descriptor; the mapping lives as long as arrays over it do."""
        if self.descriptor != GIVEN_AWAY:
            os.close(self.hand_over())
        del self.bytes


def reserve(descriptor: int, nbytes: int, ranges: Iterable[range]) -> None:
    """Make a file as long as that, with space for some of its bytes.

    Raises: OSError
    """
    os.truncate(descriptor, max(nbytes, 1))
    for part in ranges:
        # Space is taken now: else the first write to a page fails by SIGBUS when there is none
        # left.
        os.posix_fallocate(descriptor, part.start, max(len(part), 1))


def _mapped(descriptor: int, nbytes: int) -> Bytes:
    """A file's bytes, shared, until nothing looks at them.

    Not as mmap.mmap, which keeps a duplicate of the descriptor: a wafer has one such mapping for
    each of its streamers.
    """
    address = _map(None, nbytes, descriptor, 0)
    mapped = (ctypes.c_uint8 * nbytes).from_address(address)
    # Not at the exit, where a thread may still read in it: the kernel unmaps it then.
    weakref.finalize(mapped, _libc.munmap, address, nbytes).atexit = False
    return np.ctypeslib.as_array(mapped)


def _map(at: int | None, nbytes: int, descriptor: int, offset: int) -> int:
    """Map bytes of a file, in the place of what lies at an address if there is one."""
    # MAP_FIXED replaces what lies at the address, so it is only for memory of our own.
    flags = mmap.MAP_SHARED if at is None else mmap.MAP_SHARED | _MAP_FIXED
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(at, nbytes, protection, flags, descriptor, offset)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(address)


log = logging.getLogger("csrun")

STALL_S = 30.0  # a wait as long as this is worth a line
BRIEF_S = 300e-6  # a small group's update takes less; to fall asleep and be woken, 30 to 60 us
OWN_WORD_S = 1.0  # who is awaited may wait itself: its own word on that comes first

Overdue = Callable[[float], None]


def peer_overdue(name: str, task: str) -> Overdue:
    """Tells of a peer that the chief has asked to do something, and that does not answer."""
    return lambda seconds: log.warning(
        f"The chief has waited for {name} to {task} for {seconds:.0f} s"
    )


class EndedByChief(Exception):  # noqa: N818  an event, not an error
    """The chief ended the run while this role was waiting; `stop` is its last message."""

    def __init__(self, stop: Stop) -> None:
        super().__init__("the chief ended the run")
        self.stop = stop


class Counter:
    """A counter shared by descriptor. `descriptor` is taken over."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @staticmethod
    def create() -> "Counter":
        """A new counter at zero."""
        # EFD_NONBLOCK: a waiter polls the counter together with its channel to the chief.
        return Counter(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def raise_by(self, count: int = 1) -> None:
        """Add to the count and wake the waiter."""
        os.eventfd_write(self.descriptor, count)

    def close(self) -> None:
        os.close(self.descriptor)


class Mail:
    """Mailbox of a role at work, read when the role looks; a Stop interrupts it.

    Raises: EndedByChief at a Stop, PeerLost when the chief is lost
    """

    def __init__(self, control: Channel) -> None:
        self.control = control
        self._kept: deque[AnyMessage] = deque()
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)

    @property
    def has_kept(self) -> bool:
        """Return whether some lie here that no descriptor tells of."""
        return bool(self._kept)

    def take(self) -> AnyMessage | None:
        """The next message that has come, if there is one."""
        if not self._kept and self._poll.poll(0):
            self.keep()
        return self._kept.popleft() if self._kept else None

    def keep(self) -> None:
        """Wait for one and keep it."""
        message, _ = self.control.receive()
        if isinstance(message, Stop):
            raise EndedByChief(message)
        self._kept.append(message)


class StallWatch:
    """Tells of a wait that does not end: after `STALL_S`, and each time that has doubled.

    `after_s` is another time than that; it doubles, too.
    """

    def __init__(self, overdue: Overdue, after_s: float | None = None) -> None:
        self._overdue = overdue
        self._began_s = monotonic()
        self._next_s = STALL_S if after_s is None else after_s

    @staticmethod
    def of_reporter(overdue: Overdue, waited_s: float = 0.0) -> "StallWatch":
        """The watch over a peer that reports its own waits, `waited_s` long at its last report.

        Its next report would come when that has doubled, or after STALL_S if there was none: a peer
        that is silent for longer neither waits nor works, or works for very long.
        """
        return StallWatch(overdue, (waited_s or STALL_S) + OWN_WORD_S)

    def look(self) -> float:
        """Tell of the wait if it is time to; the seconds until it will be."""
        waited_s = monotonic() - self._began_s
        if waited_s >= self._next_s:
            self._next_s *= 2
            self._overdue(waited_s)
        return self._next_s - waited_s

    def poll(self, poll: select.poll) -> list[tuple[int, int]]:
        """Return what is ready, without a timeout."""
        while True:
            if ready := poll_awake(poll, max(0.001, self.look())):
                return ready


class HeldBack:
    """Counter of what the chief has paused, new each time, and its waiters."""

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._counter: Counter | None = None

    def begin(self) -> Callable[[], None]:
        """Answer the chief with a counter; what waits for one more in it."""
        self.close()
        self._counter = Counter.create()
        self._control.send(UpdatesHeld(), (self._counter.descriptor,))
        return Waiter(self._counter, self._control).take

    def close(self) -> None:
        if self._counter is not None:
            self._counter.close()


class Waiter:
    """The waiting side of a counter, which also notices the end of the run.

    While it waits it listens to `control`, the channel to the chief: a Stop ends the wait as
    EndedByChief, a lost chief as PeerLost. `overdue` is told of a wait that does not end. brief_s:
    so long it does not sleep, which is for waits that may be shorter than falling asleep and being
    woken.
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
    def known(self) -> int:
        """Number that may be taken at once of those read; more may have come since."""
        return self._available

    def ready(self) -> int:
        """Number that may be taken at once, as far as known; 0 only when there is none."""
        if not self._available:
            with suppress(BlockingIOError):
                self._available = os.eventfd_read(self._descriptor)
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
        """Return what is ready, without a timeout."""
        if self._brief_s and (ready := poll_briefly(self._poll, self._brief_s)):
            return ready
        return StallWatch(self._overdue).poll(self._poll) if self._overdue else self._poll.poll()
