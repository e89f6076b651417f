"""Small files, read whole within a size limit and written atomically.

csrun reads and writes all of its files through this module. Links and special files that another
account may have placed in a folder are not followed: a temporary file is always created new, and
only a regular file is read.
"""

import errno
import os
import pwd
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from csrun.base.errors import CsrunError, UsageError

SMALL_FILE_BYTES = 16 << 20  # a hundred times the largest file of plain values that csrun writes
_PIECE_BYTES = 1 << 20
_TEMPORARY = re.compile(r"\.csrun-[0-9a-f]{8}\.tmp")


@dataclass(frozen=True)
class FileContent:
    """Content, owner and mode of a file."""

    data: bytes
    uid: int
    mode: int


def find(path: Path, limit_bytes: int = SMALL_FILE_BYTES, *, follow: bool = True) -> FileContent:
    """Read a small file written by csrun, with its owner and mode.

    follow: follow a symbolic link.

    Raises: FileNotFoundError; another OSError if the file cannot be read, is not a regular file
    (opening a FIFO does not block), or has more than `limit_bytes`
    """
    # Without O_NONBLOCK the open of a FIFO would block until a writer opens it.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    with open(open_regular(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        return FileContent(read_up_to(file, limit_bytes, path), status.st_uid, status.st_mode)


def read_file(path: Path, limit_bytes: int = SMALL_FILE_BYTES) -> bytes:
    """Return the bytes of a small file written by csrun; links are followed. Raises: OSError as
    `find`.
    """
    return find(path, limit_bytes).data


def read_input(path: Path, limit_bytes: int) -> bytes:
    """Read an input of the user: a file, or a pipe, which is read once, up to its end.

    Raises: OSError, also for more than `limit_bytes`
    """
    with open(path, "rb") as file:
        return read_up_to(file, limit_bytes, path)


def read_start(path: Path, count: int) -> str:
    """Return the first bytes of a file as text for display; empty if the file cannot be read."""
    try:
        with open(open_regular(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            return file.read(count).decode(errors="replace")
    except OSError:
        return ""


def read_end(path: Path, count: int) -> str:
    """Return the last bytes of a file as text for display, starting at a line's beginning."""
    try:
        with open(open_regular(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            left_out = max(0, os.fstat(file.fileno()).st_size - count)
            file.seek(left_out)
            data = file.read(count)
    except OSError:
        return ""
    whole = data.partition(b"\n")[2] if left_out else data
    return (whole or data).decode(errors="replace")


def read_up_to(file: BinaryIO, limit_bytes: int, path: Path) -> bytes:
    """Read a file in chunks: a single read of `limit` bytes would allocate all of them."""
    too_large = OSError(errno.EFBIG, f"more than {limit_bytes:,} bytes", str(path))
    if os.fstat(file.fileno()).st_size > limit_bytes:
        raise too_large
    # st_size of a pipe, or of a file in /proc, is 0, so the bytes that were read are counted, too.
    pieces: list[bytes] = []
    left = limit_bytes + 1
    while left and (piece := file.read(min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise too_large
    return b"".join(pieces)


def open_regular(path: Path, flags: int, mode: int = 0o644) -> int:
    """Open a regular file and return its descriptor; `mode` applies if `flags` create the file.

    Raises: OSError, also for anything but a regular file
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOCTTY, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if flags & os.O_CREAT:
        allow_owner(descriptor)
    return descriptor


def write_atomic(path: Path, data: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Write a small file atomically, through a temporary file next to it; `mode` ignores the umask.

    durable: flush the file and its folder's entry to disk before returning. Without it the call
        does not wait for the disk, and a crash of the machine may lose the file.
    """
    try:
        _write_replacing(path, data, durable, mode)
    except FileNotFoundError:
        # A training that starts in this folder may have swept the temporary file: try again.
        _write_replacing(path, data, durable, mode)
    if durable:
        sync_folder(path.parent)


def _write_replacing(path: Path, data: bytes, durable: bool, mode: int | None) -> None:
    temporary = temporary_name(path)
    try:
        with open(create_new(temporary), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            if durable:
                # fsync does not flush Python's buffer.
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        discard(temporary)


@contextmanager
def atomic_replacement(path: Path) -> Iterator[Path]:
    """Temporary name in the same folder for a large file, which replaces `path` at the end."""
    temporary = temporary_name(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        discard(temporary)


def temporary_name(path: Path) -> Path:
    """Return an unpredictable name in the same folder, for a file that will replace `path`."""
    return path.with_name(f".csrun-{os.urandom(4).hex()}.tmp")


def create_new(path: Path) -> int:
    """Create a file and return its descriptor; an existing file or link of the name is an error.

    The owner may read and write the file, whatever the umask.

    Raises: FileExistsError if the name exists
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    allow_owner(descriptor)
    return descriptor


def allow_owner(descriptor: int) -> None:
    """Give the owner read and write permission, which the umask may have removed."""
    found = os.fstat(descriptor)
    if found.st_mode & 0o600 != 0o600 and found.st_uid == os.geteuid():
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) | 0o600)


def discard(temporary: Path) -> None:
    """Remove a temporary file if possible; otherwise it is swept later.

    Errors are ignored, so that the caller reports the first error instead of this one.
    """
    with suppress(OSError):
        temporary.unlink()


def sweep_temporaries(folder: Path) -> None:
    """Remove temporary files of this account's killed writers; only for the folder's single
    writer.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                        os.unlink(entry.path)


def replace_link(link: Path, target: Path) -> None:
    """Replace the file or link at a path by a symbolic link, atomically."""
    temporary = temporary_name(link)
    try:
        temporary.symlink_to(target)
        temporary.replace(link)
    finally:
        discard(temporary)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, which their owner may enter and write.

    The umask applies to the group and others. An existing folder is left as it is.

    Raises: FileExistsError if the path is not a folder; another OSError
    """
    try:
        _make_entered(folder, 0o777)
    except FileExistsError:
        if not folder.is_dir():
            raise
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        make_folder(folder.parent)
        with suppress(FileExistsError):  # created meanwhile by another process
            _make_entered(folder, 0o777)


def make_temporary_folder(parent: Path, prefix: str) -> Path:
    """Create a folder with a new name that only this account can access."""
    import tempfile  # slow import, not needed by --help

    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):  # deleted by a process that cleans up what others left
            _let_owner_enter(folder)
            return folder


def make_private(folder: Path) -> None:
    """Create a folder that only this account can access, and its missing parents.

    It is created with its final mode, whatever the umask: mkdir(2) applies its mode under an ACL,
    too. An existing folder is accepted if no other account can write to it.

    Raises: UsageError for a folder of another account, or one that others may write; OSError
    """
    try:
        _make_entered(folder, 0o700)
    except FileExistsError:
        require_own(folder)
    except FileNotFoundError:
        make_private(folder.parent)
        with suppress(FileExistsError):  # created meanwhile by another process
            _make_entered(folder, 0o700)


def _make_entered(folder: Path, mode: int) -> None:
    os.mkdir(folder, mode)
    _let_owner_enter(folder)


def _let_owner_enter(folder: Path) -> None:
    """Give the owner permission to enter a new folder, which the umask may have removed."""
    # needs no permission on it
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        mode = os.fstat(descriptor).st_mode
        if mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | 0o700)
    finally:
        os.close(descriptor)


SHARED = 0o2770  # members of a group create and remove files in it; new entries belong to the group
SHARED_STICKY = 0o3770  # members create entries, and each account can only remove its own
SHOWN = 0o2750  # the owner writes, the group reads


def make_for_group(folder: Path, mode: int) -> None:
    """Create a folder with this mode, whatever the umask; an existing one is left as it is.

    Raises: UsageError for another account's link, or anything that is not a folder; OSError
    """
    try:
        _make_entered(folder, 0o700)
    except FileExistsError:
        refuse_foreign_link(folder)
        if not folder.is_dir():
            raise UsageError(
                f"{folder}: is not a folder; remove it, csrun creates a folder there"
            ) from None
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def refuse_foreign_link(path: Path) -> None:
    """Refuse a symbolic link of another account, which could point to any folder that we may write.

    Raises: UsageError; OSError if the path does not exist
    """
    # lstat: the owner of the link counts, not that of its target.
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.getuid()):
        raise UsageError(
            f"{path}: is a link created by {account_name(found.st_uid)}; remove it, csrun"
            " writes there"
        )


def require_own(folder: Path) -> None:
    """Raises: UsageError for a folder of another account, or one that others may write."""
    refuse_foreign_link(folder)
    found = os.stat(folder)
    if found.st_uid not in (0, os.getuid()):
        raise UsageError(
            f"{folder}: owned by {account_name(found.st_uid)}, who could modify it; set"
            " CSRUN_STATE_DIR to a folder of your own, or 'shared: true' in the site file"
        )
    # In a sticky folder such as /tmp an account can only rename and remove its own entries.
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        raise UsageError(
            f"{folder}: writable by others (mode {stat.S_IMODE(found.st_mode):04o}); run 'chmod"
            f" go-w {folder}'"
        )


def account_name(uid: int) -> str:
    """Name of an account, or its number when it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context manager, also a decorator, for writes below `path`.

    Raises: CsrunError for an OSError such as a full disk
    """
    try:
        yield
    except OSError as error:
        raise CsrunError(
            f"{error.filename or path}: cannot be written: {error.strerror}; "
            "free some space or choose another model_dir"
        ) from error
