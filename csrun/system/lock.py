"""Lock files that the kernel releases with their holder.

They use flock; the file's content is the holder's name.
"""

import errno
import fcntl
import os
import stat
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Self

from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import (
    SHARED,
    account_name,
    allow_owner,
    create_new,
    make_for_group,
    make_private,
    read_start,
    refuse_foreign_link,
    temporary_name,
)

_HOLDER_BYTES = 200
# open errors that mean that the lock is not held
_NO_LOCK = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR)
# not a lock file
_IN_THE_WAY = (errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)
_PAUSES_S = tuple(0.001 * 2**n for n in range(10))  # retries of a second in total before a message


@dataclass(eq=False)
class FileLock:
    """Exclusive lock that this process holds; the kernel releases it when the process ends.

    A process forked from this one does not hold it, because its descriptor is closed in the child.
    A program that inherits the descriptor does (see `adopt`); the lock is then held until both have
    ended.
    """

    path: Path
    fd: int
    _is_open: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        _held.add(self)

    @classmethod
    def adopt(cls, path: Path, fd: int) -> Self:
        """Hold a lock whose descriptor was inherited from the program that started this one."""
        os.set_inheritable(fd, False)
        return cls(path, fd)

    def name_holder(self, holder: str) -> None:
        """Write the name of the holder, for waiting processes."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, holder.encode()[:_HOLDER_BYTES], 0)

    def release(self) -> None:
        """Release this process's hold."""
        if self._is_open:
            self._is_open = False
            os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


_held: "weakref.WeakSet[FileLock]" = weakref.WeakSet()


def _release_in_child() -> None:
    for file_lock in list(_held):
        file_lock.release()


os.register_at_fork(after_in_child=_release_in_child)


def try_lock(path: Path, holder: str, shared: bool = False) -> FileLock | None:
    """Lock the file at `path`, created if missing; None if another process holds it.

    shared: create it for all accounts of a group instead of only the owner.
    """
    return _lock(path, holder, fcntl.LOCK_EX | fcntl.LOCK_NB, shared)


def lock(path: Path, holder: str, shared: bool = False) -> FileLock:
    """Lock the file at `path`, waiting as long as needed; for short critical sections.

    A long wait is reported on standard error, with the holder of the lock.
    """
    for pause_s in _PAUSES_S:
        if (taken := try_lock(path, holder, shared)) is not None:
            return taken
        sleep(pause_s)
    print(f"csrun: waiting for {path}, {held_by(path)}", file=sys.stderr, flush=True)
    taken = _lock(path, holder, fcntl.LOCK_EX, shared)
    assert taken is not None
    return taken


def held_by(path: Path) -> str:
    """Return the holder of a lock, from the kernel if possible, else from the file's content.

    A process that may read the file can hold the lock without being named in it.

    Source: proc(5), /proc/locks: the fifth word is the process, the sixth MAJOR:MINOR:INODE
    """
    try:
        inode = str(path.stat().st_ino)
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        holders = {
            int(words[4])
            for words in lines
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode
        }
        named = ", ".join(f"process {pid} of {_account_of(pid)}" for pid in sorted(holders))
    except (OSError, ValueError, IndexError):
        named = ""
    return f"held by {named or holder_of(path) or 'an unknown process'}"


def _account_of(pid: int) -> str:
    return account_name(os.stat(f"/proc/{pid}").st_uid)


@contextmanager
def lock_errors(path: Path) -> Iterator[None]:
    """Context manager for a lock file that may be impossible to create or write.

    Raises: UsageError with the file system's message
    """
    try:
        yield
    except OSError as error:
        remedy = (
            "remove it" if error.errno in _IN_THE_WAY else "free some space or fix its permissions"
        )
        raise UsageError(
            f"{path}: cannot be locked: {error.strerror}; {remedy}, or set CSRUN_STATE_DIR to a "
            "writable folder"
        ) from error


def is_held(path: Path) -> bool:
    """True if a process holds the lock at `path`.

    The test takes a shared lock for a moment, during which another process's `try_lock` may fail.

    Raises: CsrunError if it cannot be determined
    """
    try:
        # Without O_NONBLOCK the open of a FIFO would block until a writer opens it.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_LOCK:
            return False
        raise CsrunError(f"{path}: cannot be inspected: {error.strerror}; remove it") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holder_of(path: Path) -> str:
    """Return the current or last holder of the lock at `path`; empty if there was none."""
    return read_start(path, _HOLDER_BYTES)


def _lock(path: Path, holder: str, operation: int, shared: bool) -> FileLock | None:
    fd = _open_shared(path) if shared else _open(path)
    try:
        fcntl.flock(fd, operation)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    taken = FileLock(path, fd)
    try:
        taken.name_holder(holder)
    except BaseException:  # e.g. on a full disk: a lock without a holder's name
        taken.release()
        raise
    return taken


def _open_shared(path: Path) -> int:
    """Open a lock file that all accounts of a group may hold, created if missing."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        refuse_foreign_link(path.parent)
        fd = os.open(path, flags)
    except FileNotFoundError:
        make_for_group(path.parent, SHARED)
        _place_shared(path)
        fd = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file with one name", str(path))
    return fd


def _place_shared(path: Path) -> None:
    """Create the file with its final mode: another account may open it at any moment."""
    temporary = temporary_name(path)
    with open(create_new(temporary), "wb") as file:
        os.fchmod(file.fileno(), 0o660)
    try:
        # link(2) fails for an existing name; rename would replace a lock that is held.
        os.link(temporary, path)
    except FileExistsError:
        return  # created meanwhile by another process
    finally:
        temporary.unlink()


def _open(path: Path) -> int:
    """Open a lock file of the owner only, without following links, whose target it would truncate.

    Other accounts must not be able to open it, because then they could hold it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        make_private(path.parent)
        fd = os.open(path, flags, 0o600)
    allow_owner(fd)
    found = os.fstat(fd)
    # A hard link may be to another account's file, which the holder's name would overwrite.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file with one name", str(path))
    return fd
