"""An Executable: a compile directory, read and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec

from csrun.base.errors import CsrunError
from csrun.base.files import read_whole
from csrun.executable.bind import (
    BindUpdate,
    BindWafer,
    Bytes,
    Runtime,
    UpdateProgram,
    WaferProgram,
    flat_views,
    wafer_views,
)
from csrun.executable.plan import Plan

PLAN_FILE = "plan.json"
PROGRAM_FILE = "program.py"
MANIFEST_FILE = "manifest.json"
_READ_BACK = (PLAN_FILE, PROGRAM_FILE)
_LARGEST_BYTES = 256 << 20  # a plan has a few KB a layer, a program fewer


class UnreadableError(CsrunError):
    """What lies in a folder is no Executable of this version."""


@dataclass(frozen=True)
class Executable:
    """A compiled model: its plan and its program's text; `digest` is its manifest's SHA-256."""

    directory: Path
    plan: Plan
    program: str
    digest: str

    def wafer_program(
        self, arena: Bytes, store: Bytes, runtime: Runtime, minibatch: int = 0
    ) -> WaferProgram:
        """The wafer's functions over this memory, for one of the minibatches in flight.

        Shapes: arena uint8[plan.arena_bytes], store uint8[plan.store.nbytes]
        """
        bind: BindWafer = self._namespace()["bind_wafer"]
        return bind(wafer_views(self.plan, arena, store, minibatch), runtime)

    def update_program(self, store: Bytes, runtime: Runtime) -> UpdateProgram:
        """The learning algorithm's functions over a store, uint8[plan.store.nbytes]."""
        bind: BindUpdate = self._namespace()["bind_update"]
        return bind(flat_views(self.plan, store), runtime)

    def _namespace(self) -> dict[str, Any]:
        path = str(self.directory / PROGRAM_FILE)
        code: CodeType = compile(self.program, path, "exec")
        namespace: dict[str, Any] = {"__name__": "csrun_program", "__file__": path}
        exec(code, namespace)
        return namespace


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """manifest.json: the SHA-256 of each file of a compile that is read back, by its name."""

    files: dict[str, str]


def manifest_of(files: Mapping[str, str]) -> str:
    """The text of the manifest of a compile's files."""
    digests = {name: sha256(files[name].encode()).hexdigest() for name in _READ_BACK}
    return msgspec.json.format(msgspec.json.encode(Manifest(digests)), indent=1).decode()


def load(directory: Path, digest: str | None = None) -> Executable:
    """Read an Executable: what lies there is what was compiled, to the last bit.

    digest: that of the Executable which another task has read there, which this one must be.

    Raises: UnreadableError when a file is missing, malformed or changed; CsrunError when it is
        another one than asked for
    """
    try:
        head = read_whole(directory / MANIFEST_FILE)
        manifest = msgspec.json.decode(head, type=Manifest)
        plan = msgspec.json.decode(_verified(directory, PLAN_FILE, manifest), type=Plan)
        program = _verified(directory, PROGRAM_FILE, manifest).decode()
    except (OSError, ValueError) as error:  # msgspec's errors, and text that is no UTF-8
        raise UnreadableError(
            f"{directory}: not a compile directory: {error}; remove it and compile again"
        ) from error
    executable = Executable(directory, plan, program, sha256(head).hexdigest())
    if digest not in (None, executable.digest):
        raise CsrunError(f"{directory}: changed since the chief has read it; run again")
    return executable


def _verified(directory: Path, name: str, manifest: Manifest) -> bytes:
    """A file's bytes. Raises: ValueError when they are not those of the manifest"""
    data = read_whole(directory / name, _LARGEST_BYTES)
    if sha256(data).hexdigest() != manifest.files.get(name):
        raise ValueError(f"{name} is not what was compiled")
    return data
