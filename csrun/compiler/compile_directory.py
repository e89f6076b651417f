"""The compile directory `tfcs_<checksum>`: written atomically, and reused by later compiles.

`plan.json` also records which questions the compile answers. A question is a model with its options
before the compiler chose the number of replicas, or the split of a batch that does not fit.
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
    """Return the checksum of a compile, over the traced IR, the options with the system's geometry,
    and the compiler itself.

    The system's name and address do not count, so equal systems share compiles.
    """
    plain = msgspec.to_builtins(options)
    plain["system"] = {k: v for k, v in plain["system"].items() if k not in _IDENTITY}
    digest = hashlib.sha256()
    # Sorted, so that the order of the fields in the source does not matter.
    wanted = msgspec.json.encode(plain, order="sorted").decode()
    for part in (VERSION, _sources(), traced_ir, wanted):
        # With lengths: no two lists of texts give the same bytes.
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:CHECKSUM_DIGITS]


_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # errors of rename(2) if the target exists
_IDENTITY = ("name", "address", "mode")


#: Packages whose code affects a compile: the compiler and everything that it imports.
ROOMS = ("base", "cirh", "compiler", "executable", "kernels", "site")
_SOURCES = (".py", ".html", ".css", ".js")  # the last three are the report's page


@cache
def _sources() -> str:
    """Digest of this csrun's sources, in addition to VERSION, because a checkout changes between
    versions.
    """
    return digest_of_sources(SOURCE_FOLDER)


def digest_of_sources(package: Path) -> str:
    """Return the digest of the csrun packages that make an Executable, over names and contents."""
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
    """Read an existing compile; None if there is none, or if it is damaged or of another
    version.
    """
    try:
        return load(directory)
    except UnreadableError:
        return None


def is_foreign(directory: Path) -> bool:
    """Return whether a directory belongs to another account, or is writable by one."""
    try:
        load(directory)
    except ForeignError:
        return True
    except UnreadableError:
        pass
    return False


def question_of(module: ModuleOp, options: CompileOptions) -> str:
    """Return the key of a choice: the traced model before it, and the compile options."""
    return questions_of(module, options)[0]


def questions_of(module: ModuleOp, *each: CompileOptions) -> list[str]:
    """Return the keys of several ways to compile a model; the model is printed once."""
    text = print_module(module)
    return [checksum_of(text, options) for options in each]


def is_compiled(question: str, root: Path) -> bool:
    """Return whether an existing compile of a model left nothing to choose."""
    return path_of(root, question).is_dir()


def chosen_before(question: str, *roots: Path) -> Plan | None:
    """Return the plan of a compile that answers the question; None if there is none in these
    folders.

    Compilers of one version make the same choice, so reusing it saves the passes.
    """
    folders = (folder for root in roots for folder in sorted(root.glob("tfcs_*")))
    found = (read(each) for each in folders if is_in_plan(question, each))
    plans = (executable.plan for executable in found if executable is not None)
    return next((plan for plan in plans if question in plan.chosen_for), None)


def keep(
    root: Path, private: Path, checksum: str, files: Files, arrays: Arrays = NO_ARRAYS
) -> Executable:
    """Write a compile where later runs can reuse it.

    If `root` belongs to another account, or is not writable, that is the `private` folder, with a
    copy in `root` for the user. The returned Executable is the compiled one, not read back: tasks
    load it by digest.

    arrays: contents of NumPy files.

    Raises: CsrunError if a file cannot be written
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
    """Write all files of a compile, unless another process has just done so.

    Raises: CsrunError if a file cannot be written
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
    """Create a temporary folder next to `directory`, locked while its writer lives."""
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
                continue  # swept before it was locked
            yield folder
            return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _fill(temporary: Path, files: Files, arrays: Arrays) -> None:
    with open_folder(temporary, make=False) as place:
        # mkdtemp makes it private; others may read a compile
        os.chmod(place, 0o755)
        for name, content in files.items():
            with open(create_new(place / name), "wb") as file:  # 0644, whatever the umask
                file.write(content.encode() if isinstance(content, str) else content)
        for name, array in arrays.items():
            with open(create_new(place / name), "wb") as stored:
                np.save(stored, array, allow_pickle=False)


def _sweep(root: Path) -> None:
    """Delete temporary folders of killed writers."""
    for folder in root.glob(".tfcs_*.*"):
        # deleted meanwhile, or its writer lives
        with suppress(OSError), _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(folder, ignore_errors=True)


def _rename(temporary: Path, directory: Path) -> None:
    """Move a compile to its place, unless an intact one, or another account's, is there.

    No lock is used: any account that may read `root` could hold it indefinitely. A damaged compile
    is moved aside; if another compiler has replaced it meanwhile, the new one is equal.
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
    """Delete a directory; it is renamed first, so that no reader sees a partial one."""
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
