"""The compile directory `tfcs_<checksum>`: whole or not there at all, reused when it is.

`plan.json` of a compile also records the questions that it answers: a question is a model and its
options before the compiler chose the number of replicas, or the parts of a batch that does not fit.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp

from csrun.base.errors import CsrunError
from csrun.base.files import create_new, make_folder, make_private, make_temporary_folder
from csrun.base.open_folder import open_folder
from csrun.base.source_folder import SOURCE_FOLDER
from csrun.base.version import VERSION
from csrun.cirh import print_module
from csrun.compiler.options import CompileOptions
from csrun.executable import (
    Executable,
    Files,
    ForeignError,
    Plan,
    UnreadableError,
    executable_of,
    is_in_plan,
    load,
)

CHECKSUM_DIGITS = 16
Arrays = Mapping[str, npt.NDArray[Any]]
NO_ARRAYS: Arrays = {}


def checksum_of(traced_ir: str, options: CompileOptions) -> str:
    """The name of a compile: the traced IR, the options with the system's geometry, ourselves.

    The system's name and address do not count: equal systems share artifacts.
    """
    plain = msgspec.to_builtins(options)
    plain["system"] = {k: v for k, v in plain["system"].items() if k not in _IDENTITY}
    digest = hashlib.sha256()
    # Sorted, so that the order of the fields in the source does not count.
    wanted = msgspec.json.encode(plain, order="sorted").decode()
    for part in (VERSION, _sources(), traced_ir, wanted):
        # With lengths: no two lists of texts give the same bytes.
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:CHECKSUM_DIGITS]


_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # rename(2): something lies there
_IDENTITY = ("name", "address", "mode")


#: Rooms whose code decides what a compile leaves: the compiler's own and all that it imports.
ROOMS = ("base", "cirh", "compiler", "executable", "kernels", "site")
_SOURCES = (".py", ".html", ".css", ".js")  # the last three are the report's page


@cache
def _sources() -> str:
    """Digest of this csrun's sources, beside VERSION: a checkout changes between versions, too."""
    return digest_of_sources(SOURCE_FOLDER)


def digest_of_sources(package: Path) -> str:
    """Digest of the csrun packages that make an Executable: names and every byte."""
    digest = hashlib.sha256()
    for room in ROOMS:
        for source in sorted(package.joinpath(room).rglob("*")):
            if source.suffix in _SOURCES:
                content = source.read_bytes()
                digest.update(f"{source.relative_to(package)}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def path_of(root: Path, checksum: str) -> Path:
    """Return the directory of the compile with this checksum."""
    return root / f"tfcs_{checksum}"


def read(directory: Path) -> Executable | None:
    """The compile that lies there; None without one, or when it is damaged or another version's."""
    try:
        return load(directory)
    except UnreadableError:
        return None


def is_foreign(directory: Path) -> bool:
    """Return whether what lies there is another account's, or one's that others may write."""
    try:
        load(directory)
    except ForeignError:
        return True
    except UnreadableError:
        pass
    return False


def question_of(module: ModuleOp, options: CompileOptions) -> str:
    """Return the key of a choice: the traced model before it, and how it is compiled."""
    return questions_of(module, options)[0]


def questions_of(module: ModuleOp, *each: CompileOptions) -> list[str]:
    """Return the keys of several ways to compile a model, whose text is made once."""
    text = print_module(module)
    return [checksum_of(text, options) for options in each]


def is_compiled(question: str, root: Path) -> bool:
    """Return whether a compile of a model lies there that left nothing to choose."""
    return path_of(root, question).is_dir()


def chosen_before(question: str, *roots: Path) -> Plan | None:
    """The plan of a compile that answers the question; None where none lies in these folders.

    Compilers of one version choose alike: to take it costs no pass.
    """
    folders = (folder for root in roots for folder in sorted(root.glob("tfcs_*")))
    found = (read(each) for each in folders if is_in_plan(question, each))
    plans = (executable.plan for executable in found if executable is not None)
    return next((plan for plan in plans if question in plan.chosen_for), None)


def keep(
    root: Path, private: Path, checksum: str, files: Files, arrays: Arrays = NO_ARRAYS
) -> Executable:
    """Write a compile, and have it where it can be taken from the next time.

    Where `root` belongs to others, or the file system says so, that is the `private` folder; a copy
    is left in `root` for people all the same. What is returned is what was compiled, not what lies
    there: tasks take it by its digest. arrays: contents of NumPy files.

    Raises: CsrunError when the file system refuses
    """
    directory, own = path_of(root, checksum), path_of(private, checksum)
    write(directory, files, arrays)
    executable = executable_of(directory, files)
    if is_foreign(directory):
        make_private(private)
        write(own, files, arrays)
    try:
        return load(directory, executable.digest)
    except CsrunError:  # another account's folder has that name
        return replace(executable, directory=own)


def write(directory: Path, files: Files, arrays: Arrays = NO_ARRAYS) -> None:
    """Write all files of a compile, or find that another process has just done so.

    Raises: CsrunError when the file system refuses
    """
    try:
        make_folder(directory.parent)
        _sweep(directory.parent)
        with _temporary(directory) as temporary:
            _fill(temporary, files, arrays)
            _rename(temporary, directory)
    except OSError as error:
        raise CsrunError(
            f"{directory}: the compile cannot be written: {error.strerror or error}"
        ) from error


@contextmanager
def _temporary(directory: Path) -> Iterator[Path]:
    """A locked folder next to `directory`; the lock says that its writer lives."""
    while True:
        folder = make_temporary_folder(directory.parent, f".{directory.name}.")
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            # The kernel releases it with the process: a folder that can be locked has no writer.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not folder.exists():
                continue  # swept between its making and its lock
            yield folder
            return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _fill(temporary: Path, files: Files, arrays: Arrays) -> None:
    with open_folder(temporary, make=False) as place:
        # mkdtemp makes it private; others may read a compile.
        os.chmod(place, 0o755)
        for name, content in files.items():
            with open(create_new(place / name), "wb") as file:  # 0644, whatever the umask
                file.write(content.encode() if isinstance(content, str) else content)
        for name, array in arrays.items():
            with open(create_new(place / name), "wb") as stored:
                np.save(stored, array, allow_pickle=False)


def _sweep(root: Path) -> None:
    """Remove what writers that were killed have left."""
    for folder in root.glob(".tfcs_*.*"):
        # Gone meanwhile, or its writer lives.
        with suppress(OSError), _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(folder, ignore_errors=True)


def _rename(temporary: Path, directory: Path) -> None:
    """Put a compile in its place, unless a whole one is there, or another account's.

    Without a lock: one on `root` could be held for ever by whoever may read it. What is damaged is
    moved aside; should it be another compiler's whole one by then, ours is the same.
    """
    while not is_foreign(directory) and read(directory) is None:
        try:
            os.rename(temporary, directory)
            return
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        _remove(directory)


def _remove(directory: Path) -> None:
    """Remove what lies there; nobody finds half of it."""
    aside = make_temporary_folder(directory.parent, f".{directory.name}.")
    try:
        with suppress(FileNotFoundError):  # another compiler has moved it
            os.rename(directory, aside / directory.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)
