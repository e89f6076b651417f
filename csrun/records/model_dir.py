"""Output folder of a run."""

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import msgspec
import yaml

from csrun.base import files
from csrun.base.errors import UsageError
from csrun.base.mode import RunMode
from csrun.base.open_folder import open_folder
from csrun.base.run_command import RunCommand
from csrun.records import performance, trace_file

LOCK_FILE = ".lock"
_WRITTEN_FOLDERS = ("train", "eval", "predict", performance.FOLDER, trace_file.FOLDER)
COMPILE_MANIFEST = "manifest.json"
COMPILE_PLAN = "plan.json"
MOST_PLAN_BYTES = 256 << 20
COMMAND_FILE = Path("train", "command_train.json")
_HOLDER_CHARACTERS = 200
_UNNAMED = "another process"
_FLOCK = struct.Struct("hhqqi4x")  # fcntl(2), struct flock: type, whence, start, length, process
_HELD = (errno.EACCES, errno.EAGAIN)  # fcntl(2): the file system chooses which of them


@contextmanager
def opened(model_dir: Path) -> Iterator[None]:
    """Create the folder if missing, and delete it at the end if it is empty.

    Raises: UsageError if it cannot be written
    """
    is_new = not os.path.exists(model_dir)
    prepare(model_dir)
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # not empty: it stays
                model_dir.rmdir()


def prepare(model_dir: Path) -> None:
    """Create the folder if missing, and check that it is writable.

    Raises: UsageError if it is not
    """
    try:
        files.make_folder(model_dir)
        # swept later if this process is killed here
        probe = files.temporary_name(model_dir / LOCK_FILE)
        os.close(files.create_new(probe))
        probe.unlink()
    except FileExistsError as error:
        raise UsageError(
            f"model_dir {model_dir}: is not a folder; choose another model_dir"
        ) from error
    except (OSError, ValueError) as error:  # the second error is that of a name with a NUL
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"model_dir {model_dir}: cannot be written: {why}; choose another model_dir"
        ) from error


@contextmanager
def locked(model_dir: Path, holder: str) -> Iterator[None]:
    """Lock the folder for one training; the lock is released with this process.

    holder: name of this training for the message in another one. A record lock instead of flock:
        processes forked by the user's input pipeline do not hold it, and it works over NFS.

    Raises: UsageError naming the holder if another process trains in the folder
    """
    path = model_dir / LOCK_FILE
    with _lock(path, holder):
        # Under the lock, so that no living writer's temporary file is deleted.
        files.sweep_temporaries(model_dir)
        for name in _WRITTEN_FOLDERS:
            _sweep(model_dir / name)
        try:
            yield
        finally:
            with suppress(OSError):  # the next training locks the remaining file
                path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Delete files that killed writers have left in a folder, if it exists.

    Raises: UsageError if the path is a link: better now than at the end of the training
    """
    with suppress(OSError), open_folder(folder, make=False) as place:
        files.sweep_temporaries(place)


def training_in(model_dir: Path) -> str:
    """Return the holder of the folder's lock, as given to `locked`; empty if it is free, or if the
    file system has no locks.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = files.open_regular(model_dir / LOCK_FILE, flags)
    except OSError:
        return ""
    with open(descriptor, errors="replace") as file:
        # F_GETLK only queries: even a short lock of ours could make a training fail.
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            kind, *_ = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
        except OSError:
            return ""
        if kind == fcntl.F_UNLCK:
            return ""
        return file.read(_HOLDER_CHARACTERS) or _UNNAMED


def _lock(path: Path, holder: str) -> IO[str]:
    while True:
        file = _lock_file(path)
        if not _try_lock(file):
            file.seek(0)
            other = file.read(_HOLDER_CHARACTERS) or _UNNAMED
            file.close()
            raise UsageError(
                f"model_dir {path.parent}: in use by {other}; wait until it ends, or choose "
                "another model_dir"
            )
        # Its last holder may have deleted the file between our open and our lock.
        if _has_file(path, file):
            with suppress(OSError):  # on a full disk the lock has no name, but it is held
                file.truncate(0)
                os.write(file.fileno(), holder.encode())  # unbuffered, so close() writes nothing
            return file
        file.close()  # its last holder has deleted it


def _lock_file(path: Path) -> IO[str]:
    """Open the lock file, created if missing, private to its owner; links are not followed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = files.open_regular(path, flags, 0o600)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be locked: {error.strerror}; remove it if no training runs in this "
            "folder, or choose another --model_dir"
        ) from error
    with suppress(OSError):  # another account's
        # an account that can read the file could hold a shared lock of it
        os.fchmod(descriptor, 0o600)
    return open(descriptor, "a+", errors="replace")


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD  # a file system without locks cannot separate two trainings
    return True


def _has_file(path: Path, file: IO[str]) -> bool:
    """Return whether a path still leads to an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def write_params(model_dir: Path, mode: str, params: Any) -> Path:
    """Write train/params_train.yaml: all parameters of a run in `mode`, including defaults.

    params: mapping, struct or dataclass, possibly nested.
    """
    path = model_dir / mode / f"params_{mode}.yaml"
    plain = msgspec.to_builtins(params, enc_hook=str)
    with files.writing(path), open_folder(path.parent) as folder:
        files.write_atomic(folder / path.name, yaml.safe_dump(plain, sort_keys=False).encode())
    return path


def write_command(model_dir: Path, command: RunCommand) -> None:
    """Write train/command_train.json: the command of a training, to run it again."""
    path = model_dir / COMMAND_FILE
    with files.writing(path), open_folder(path.parent) as folder:
        files.write_atomic(folder / path.name, msgspec.json.format(msgspec.json.encode(command)))


def require_folder(model_dir: Path) -> None:
    """Raises: UsageError if a training's model_dir does not exist"""
    if not os.path.isdir(model_dir):  # also False for a name that is too long
        raise UsageError(f"{model_dir}: no such folder; pass the model_dir of a training")


def read_command(model_dir: Path) -> RunCommand:
    """Return the command of the latest training in a model_dir.

    Raises: UsageError if it is not known
    """
    require_folder(model_dir)
    path = model_dir / COMMAND_FILE
    try:
        return msgspec.json.decode(files.find(path).data, type=RunCommand)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path}: the run's command cannot be read: train again") from error


class _PlanPart(msgspec.Struct, frozen=True):
    """Part of a compile's plan.json; all of it is in `csrun.executable`."""

    run_mode: str


def newest_compile(model_dir: Path) -> Path | None:
    """Folder of the newest compile in a model_dir: of a training if there is one; None where there
    is none at all.
    """
    found = sorted(_compiles(model_dir), reverse=True)
    trainings = (each for each in found if _run_mode_of(each[1], each[0]) == RunMode.TRAIN)
    newest = next(trainings, found[0] if found else None)
    return None if newest is None else newest[1]


def _compiles(model_dir: Path) -> Iterator[tuple[int, Path]]:
    """Folders of compiles, each with the time when it was written."""
    for path in model_dir.glob(f"tfcs_*/{COMPILE_MANIFEST}"):
        with suppress(OSError):  # removed meanwhile
            yield path.stat().st_mtime_ns, path.parent


@lru_cache
def _run_mode_of(compiled: Path, written_ns: int) -> str:
    """Kind of program of a compile; empty if its plan cannot be read."""
    with suppress(OSError, msgspec.MsgspecError):
        plan = files.find(compiled / COMPILE_PLAN, MOST_PLAN_BYTES).data
        return msgspec.json.decode(plan, type=_PlanPart).run_mode
    return ""
