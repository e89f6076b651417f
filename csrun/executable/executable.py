"""An Executable: a compile directory, read and verified."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec

from csrun.base.errors import CsrunError
from csrun.base.files import read_up_to
from csrun.executable import machine_code
from csrun.executable.arrays import Array, Bytes
from csrun.executable.batch_calls import bind_batches
from csrun.executable.bind import (
    BIND_WORDS,
    BindUpdate,
    BindWafer,
    BindWords,
    Record,
    Runtime,
    StepState,
    UpdateProgram,
    WaferProgram,
    wafer_views,
)
from csrun.executable.kernel_code import IMAGES, MACHINE_CODE_FILES, KernelFiles
from csrun.executable.kernel_signature import KernelManifest
from csrun.executable.measured_values import RANGES_FOLDER, ValueMeasurer
from csrun.executable.plan import Plan
from csrun.executable.recorded_values import ValueRecorder
from csrun.executable.shared_store import relocated_plan, with_store, with_window
from csrun.executable.store_places import AnyStore, flat_views, of_system
from csrun.executable.stored_groups import StoreLayout
from csrun.executable.stretches import BIND, JOIN, join_calls, with_stretches
from csrun.executable.update_recorder import UpdateRecorder

PLAN_FILE = "plan.json"
PROGRAM_FILE = "program.py"
MANIFEST_FILE = "manifest.json"
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_READ_BACK = (PLAN_FILE, PROGRAM_FILE)
_LARGEST_BYTES = 256 << 20  # a plan has a few KB per layer, a program less


class UnreadableError(CsrunError):
    """Folder without an Executable of this version."""


class ForeignError(UnreadableError):
    """Folder or file that another account owns or may write."""


@dataclass(frozen=True)
class Executable:
    """A compiled model: its plan and the text of its program; `digest` is the manifest's SHA-256.

    kernels: machine code of functions of the program, if it was compiled with it.
    ranges: folder for measured ranges; None: the folder in the compile directory.
    """

    directory: Path
    plan: Plan
    program: str
    digest: str
    kernels: KernelFiles | None = None
    ranges: Path | None = None

    def wafer_program(
        self,
        arena: Bytes,
        store: AnyStore,
        runtime: Runtime,
        minibatch: int = 0,
        is_added: bool = False,
    ) -> WaferProgram:
        """Return the wafer's functions over this memory, for one of the minibatches in flight.

        is_added: add the gradients to those of earlier micro-batches.
        Shapes: arena uint8[plan.arena_bytes], store uint8[plan.store.nbytes]
        """
        if recorders := self._recorders():
            runtime = replace(runtime, record=_each_of(recorders))
        bind: BindWafer = self._namespace(runtime.threads)["bind_wafer"]
        return bind(wafer_views(self.plan, arena, store, minibatch, is_added), runtime)

    def update_program(self, store: Bytes, runtime: Runtime) -> UpdateProgram:
        """Return the update functions over a store, uint8[plan.store.nbytes]."""
        bind: BindUpdate = self._namespace(runtime.threads)["bind_update"]
        views = flat_views(self.plan, store)
        program = bind(views, runtime)
        if self.plan.recording is not None:
            program = UpdateRecorder(self.plan, views, self.directory).over(program)
        return program

    def words_binder(self) -> BindWords:
        """Return the function that binds weights to the words that they are narrowed to.

        The functions that it returns may run concurrently.
        """
        half = self.plan.storage
        assert half is not None, "weights are words in mixed precision"
        if self.plan.store_in_arena:  # updates write the words
            return lambda weights, words: partial(half.narrow, weights, words)
        bind: BindWords = self._namespace()[BIND_WORDS]
        return bind

    def over(self, owner: Plan) -> "Executable":
        """Return this Executable over the store of another; CsrunError if the store does not
        fit.
        """
        return replace(self, plan=relocated_plan(owner, self.plan))

    def with_store(self, store: StoreLayout) -> "Executable":
        """Return this Executable with the run's store, which may be larger than its own."""
        return replace(self, plan=with_store(self.plan, store))

    def with_window(self, nbytes: int) -> "Executable":
        """Return this Executable with its own store, and a gradient window of at least this
        size.
        """
        return replace(self, plan=with_window(self.plan, nbytes))

    def of_system(self, system: int) -> "Executable":
        """Return this Executable with the gradients at the offset of system k."""
        return replace(self, plan=of_system(self.plan, system))

    def _recorders(self) -> list[Record]:
        """Return the receivers of the values that the program records or measures."""
        plan, found = self.plan, list[Record]()
        if plan.recording is not None:
            found.append(ValueRecorder(self.directory, plan.recording))
        if plan.measuring is not None and plan.storage is not None:
            ranges = self.ranges or self.directory / RANGES_FOLDER
            found.append(ValueMeasurer(ranges, plan.measuring, plan.storage))
        return found

    def _namespace(self, threads: int = 1) -> dict[str, Any]:
        path = str(self.directory / PROGRAM_FILE)
        functions = frozenset[str]()
        if self.kernels is not None and machine_code.is_supported():
            functions = frozenset(self.kernels.functions)
        namespace: dict[str, Any] = {
            "__name__": "csrun_program",
            "__file__": path,
            JOIN: join_calls,
            BIND: bind_batches,
        }
        exec(_code_of(self.program, functions, path), namespace)
        if self.kernels is not None:
            self.kernels.replace_functions(namespace, self.directory, threads)
        return namespace


@lru_cache(maxsize=1)  # one process binds both halves of a program, one after the other
def _code_of(program: str, functions: frozenset[str], path: str) -> CodeType:
    """The code of a program, with stretches of the functions that have machine code.

    Compiled under the name of its file, so that a traceback and a profiler show its lines.
    """
    tree = with_stretches(program, functions) if functions else program
    return compile(tree, path, "exec")


def _each_of(recorders: list[Record]) -> Record:
    if len(recorders) == 1:
        return recorders[0]

    def record(step: StepState, number: int, value: Array) -> None:
        for each in recorders:
            each(step, number, value)

    return record


class CompileManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """manifest.json: SHA-256 of each file of a compile that is read back, by name.

    arrays: names of files with arrays that the program reads; each name is the array's digest.
    machine: machine code, if there is any.
    """

    files: dict[str, str]
    arrays: tuple[str, ...] = ()
    machine: KernelManifest | None = None


Files = Mapping[str, str | bytes]


def manifest_of(
    files: Files, arrays: Iterable[str] = (), machine: KernelManifest | None = None
) -> str:
    """Return the text of the manifest of a compile's files."""
    names = (*_READ_BACK, *(name for name in MACHINE_CODE_FILES if name in files))
    digests = {name: sha256(_bytes(files[name])).hexdigest() for name in names}
    manifest = CompileManifest(digests, tuple(arrays), machine)
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1).decode()


def executable_of(directory: Path, files: Files) -> Executable:
    """Return the Executable of files that are, or will be, in a folder."""
    plan = msgspec.json.decode(files[PLAN_FILE], type=Plan)
    head = _bytes(files[MANIFEST_FILE])
    kernels = None
    if (machine := msgspec.json.decode(head, type=CompileManifest).machine) is not None:
        own = {name: _bytes(files[name]) for name in MACHINE_CODE_FILES}
        kernels = KernelFiles.of_files(machine, own)
    program = _bytes(files[PROGRAM_FILE]).decode()
    return Executable(directory, plan, program, sha256(head).hexdigest(), kernels)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def load(directory: Path, digest: str | None = None) -> Executable:
    """Read an Executable and verify that it is bitwise what was compiled.

    A program is code that runs with the permissions of this account, so its files must belong to
    this account or to root.

    digest: digest of the Executable that another task has read or made. If it matches, the owner of
        the files does not matter.

    Raises: UnreadableError if a file is missing, malformed or changed; ForeignError if another
    account owns it or may write it; CsrunError if the digest differs
    """
    try:
        with _opened(directory, is_known=digest is not None) as folder:
            # The manifest first: its digest is that of the Executable, and it verifies the other
            # files.
            head = folder.read(MANIFEST_FILE)
            manifest = msgspec.json.decode(head, type=CompileManifest)
            plan = msgspec.json.decode(folder.verified(PLAN_FILE, manifest), type=Plan)
            program = folder.verified(PROGRAM_FILE, manifest).decode()
            kernels = _read_kernels(folder, manifest)
            for name in manifest.arrays:
                folder.require_file(name)
    except (OSError, ValueError) as error:  # msgspec's errors, and invalid UTF-8
        raise UnreadableError(
            f"{directory}: not a compile directory: {error}; remove it and compile again"
        ) from error
    executable = Executable(directory, plan, program, sha256(head).hexdigest(), kernels)
    if digest not in (None, executable.digest):
        raise CsrunError(f"{directory}: changed after the chief read it; run again")
    return executable


def _read_kernels(folder: "_OpenDirectory", manifest: CompileManifest) -> KernelFiles | None:
    """Read the machine code of a compile; a damaged image is rebuilt from its IR.

    Raises: OSError or ValueError without the IR
    """
    if manifest.machine is None:
        return None
    files: dict[str, bytes | None] = dict.fromkeys(MACHINE_CODE_FILES)
    for name in MACHINE_CODE_FILES:
        with suppress(OSError, ValueError) if name in IMAGES else nullcontext():
            files[name] = folder.verified(name, manifest)
    return KernelFiles.of_files(manifest.machine, files)


def is_in_plan(text: str, directory: Path) -> bool:
    """Return whether the stored plan contains a text, without verifying the plan."""
    try:
        with _opened(directory, is_known=False) as folder:
            return text.encode() in folder.read(PLAN_FILE)
    except (OSError, ValueError, UnreadableError):
        return False


@dataclass(frozen=True)
class _OpenDirectory:
    """An open compile directory; accessed by descriptor, so it cannot be replaced while it is
    read.
    """

    directory: Path
    descriptor: int
    is_known: bool

    def read(self, name: str) -> bytes:
        """Return the bytes of a file in it; links are not followed."""
        # Without O_NONBLOCK the open of a FIFO would block until a writer opens it.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=self.descriptor)
        try:
            # By descriptor: another file may take the name meanwhile.
            found = os.fstat(descriptor)
            self.require_trusted(found, name)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{name} is not a regular file")
            with open(descriptor, "rb", closefd=False) as file:
                return read_up_to(file, _LARGEST_BYTES, self.directory / name)
        finally:
            os.close(descriptor)

    def require_file(self, name: str) -> None:
        """Raises: OSError or ValueError if there is no regular file of this name"""
        found = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        self.require_trusted(found, name)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{name} is not a regular file")

    def verified(self, name: str, manifest: CompileManifest) -> bytes:
        """Return the bytes of a file. Raises: ValueError if they do not match the manifest"""
        data = self.read(name)
        if sha256(data).hexdigest() != manifest.files.get(name):
            raise ValueError(f"{name} does not match its checksum")
        return data

    def require_trusted(self, found: os.stat_result, name: str = "") -> None:
        """Raises: ForeignError if another account owns the file or may write it"""
        if self.is_known or (found.st_uid in (os.geteuid(), 0) and not found.st_mode & _BY_OTHERS):
            return
        raise ForeignError(
            f"{self.directory / name}: owned or writable by another account, not run; fix its "
            "owner and mode, or compile again"
        )


@contextmanager
def _opened(directory: Path, is_known: bool) -> Iterator[_OpenDirectory]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        folder = _OpenDirectory(directory, descriptor, is_known)
        folder.require_trusted(os.fstat(descriptor))
        yield folder
    finally:
        os.close(descriptor)
