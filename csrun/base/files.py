"""Small files: read whole, within bounds, and written so that they are there whole or not at all.

Everything csrun keeps goes through here. What another account may have put in the way is not
followed: a temporary file is made anew, and what is read back must be a regular file.
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

SMALL_FILE_BYTES = 16 << 20  # what csrun writes as one file of plain values has a hundredth of it
_PIECE_BYTES = 1 << 20
_TEMPORARY = re.compile(r"\.csrun-[0-9a-f]{8}\.tmp")


@dataclass(frozen=True)
class FileContent:
    """Content, owner and mode of a file."""

    data: bytes
    uid: int
    mode: int


def find(path: Path, limit_bytes: int = SMALL_FILE_BYTES, *, follow: bool = True) -> FileContent:
    """A small file that csrun wrote; without `follow`, no link to one.

    Raises: FileNotFoundError; another OSError when it cannot be read, is no regular file (a FIFO
    is not waited for), or has more than `limit_bytes`
    """
    # Without O_NONBLOCK the open of a FIFO would wait for its writer, for ever.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    with open(open_regular(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        return FileContent(read_up_to(file, limit_bytes, path), status.st_uid, status.st_mode)


def read_whole(path: Path, limit_bytes: int = SMALL_FILE_BYTES) -> bytes:
    """The bytes of a small file that csrun wrote; links are followed. Raises: OSError as `find`."""
    return find(path, limit_bytes).data


def read_given(path: Path, limit_bytes: int) -> bytes:
    """Read an input of the user: a file, or a pipe, which is read once, up to its end.

    Raises: OSError, also for more than `limit_bytes`
    """
    with open(path, "rb") as file:
        return read_up_to(file, limit_bytes, path)


def read_start(path: Path, count: int) -> str:
    """The first bytes of a file as text, for people; empty when there are none to be read."""
    try:
        with open(open_regular(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            return file.read(count).decode(errors="replace")
    except OSError:
        return ""


def read_end(path: Path, count: int) -> str:
    """The last bytes of a file as text, for people, from the begin of a line on."""
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
    """All bytes of a file, taken in pieces: one read of the limit would reserve that much."""
    too_large = OSError(errno.EFBIG, f"more than {limit_bytes:,} bytes", str(path))
    if os.fstat(file.fileno()).st_size > limit_bytes:
        raise too_large
    # st_size of a pipe, or of a file in /proc, is 0: what is read is counted, too.
    pieces: list[bytes] = []
    left = limit_bytes + 1
    while left and (piece := file.read(min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise too_large
    return b"".join(pieces)


def open_regular(path: Path, flags: int, mode: int = 0o644) -> int:
    """A descriptor of a regular file, made with this mode where `flags` say so.

    Raises: OSError for anything else that lies there, too
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOCTTY, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if flags & os.O_CREAT:
        allow_owner(descriptor)
    return descriptor


def write_whole(path: Path, data: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Write a small file through a temporary one next to it; with this mode, whatever the umask.

    durable: on disk, with its folder's entry, when this returns. Without it the file does not
    outlast a crash of the machine, and costs no wait for the disk.
    """
    try:
        _write_beside(path, data, durable, mode)
    except FileNotFoundError:
        # A training that begins in this folder may have swept our temporary file: once more.
        _write_beside(path, data, durable, mode)
    if durable:
        sync_folder(path.parent)


def _write_beside(path: Path, data: bytes, durable: bool, mode: int | None) -> None:
    temporary = temporary_beside(path)
    try:
        with open(create_new(temporary), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            if durable:
                # fsync knows nothing of what is in Python's buffer.
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        discard(temporary)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name in the same folder for a large file, which takes the place of `path` in the end."""
    temporary = temporary_beside(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        discard(temporary)


def temporary_beside(path: Path) -> Path:
    """A name in the same folder that nobody can know beforehand, for what will take its place."""
    return path.with_name(f".csrun-{os.urandom(4).hex()}.tmp")


def create_new(path: Path) -> int:
    """A descriptor of a file that was not there: never what a link points to.

    Its owner may read and write it, whatever the umask.

    Raises: FileExistsError when there is anything of this name
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    allow_owner(descriptor)
    return descriptor


def allow_owner(descriptor: int) -> None:
    """Give its owner the right to read and write a file, which a umask may have taken."""
    found = os.fstat(descriptor)
    if found.st_mode & 0o600 != 0o600 and found.st_uid == os.geteuid():
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) | 0o600)


def discard(temporary: Path) -> None:
    """Remove a temporary file, if it is there and the disk lets us; else it is swept later.

    The first error must be reported, and not that a broken disk refuses this, too.
    """
    with suppress(OSError):
        temporary.unlink()


def sweep_temporaries(folder: Path) -> None:
    """Remove our own leftovers of writers that were killed; for the only writer in the folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                        os.unlink(entry.path)


def replace_link(link: Path, target: Path) -> None:
    """Make a symbolic link in the place of whatever file or link is there, in one go."""
    temporary = temporary_beside(link)
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
    """Make a folder, and those that are missing above it, which their owner may enter and write.

    Nobody else gets a right that the umask takes. A folder that is there is left as it is.

    Raises: FileExistsError where anything else lies there; another OSError
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
        with suppress(FileExistsError):  # made just now by another process, as we would
            _make_entered(folder, 0o777)


def make_temporary_folder(parent: Path, prefix: str) -> Path:
    """Make a folder of a name that was not there, which is this account's alone."""
    import tempfile  # takes milliseconds, which no --help should wait for

    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    _let_owner_enter(folder)
    return folder


def make_private(folder: Path) -> None:
    """Make a folder that is this account's alone, and those that are missing above it.

    Made private, not made so later, whatever the umask: mkdir(2) heeds its mode under an ACL, too.
    What is there already is taken when nobody else can put anything in it.

    Raises: UsageError for a folder of another account, or one that others may write; OSError
    """
    try:
        _make_entered(folder, 0o700)
    except FileExistsError:
        require_own(folder)
    except FileNotFoundError:
        make_private(folder.parent)
        with suppress(FileExistsError):  # made just now by another process, as we would
            _make_entered(folder, 0o700)


def _make_entered(folder: Path, mode: int) -> None:
    os.mkdir(folder, mode)
    _let_owner_enter(folder)


def _let_owner_enter(folder: Path) -> None:
    """Give its owner the rights to a folder made just now, which a umask may have taken."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)  # needs no right to it
    try:
        mode = os.fstat(descriptor).st_mode
        if mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | 0o700)
    finally:
        os.close(descriptor)


SHARED = 0o2770  # a folder where a group may make and remove files; they are the group's, too
SHARED_STICKY = 0o3770  # one where it may make entries, and each account remove its own alone
SHOWN = 0o2750  # one that its owner alone writes, and the group reads


def make_for_group(folder: Path, mode: int) -> None:
    """Make a folder with this mode, whatever the umask; one that is there is left as it is.

    Raises: UsageError for another account's link to one, or anything else in its place; OSError
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
    """Refuse a symbolic link of another account: it leads to what we may write, and they may not.

    Raises: UsageError; OSError when nothing is there
    """
    # lstat: the link's own account counts, not that of what it leads to.
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
    # In a sticky folder, as /tmp, each account may rename and remove its own entries alone.
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
    """Writing below `path`; works as a decorator, too.

    Raises: CsrunError for an OSError, a full disk for example
    """
    try:
        yield
    except OSError as error:
        raise CsrunError(
            f"{error.filename or path}: cannot be written: {error.strerror}; "
            "free some space or choose another model_dir"
        ) from error
