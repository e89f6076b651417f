"""An Executable: a compile directory, read and checked."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec

from csrun.base.errors import CsrunError
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


class UnreadableError(CsrunError):
    """What lies in a folder is no Executable of this version."""


@dataclass(frozen=True)
class Executable:
    """A compiled model: its plan and its program's text."""

    directory: Path
    plan: Plan
    program: str

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


def program_digest(program: str) -> str:
    """The digest that ties a plan to its program's text."""
    return hashlib.sha256(program.encode()).hexdigest()


def load(directory: Path) -> Executable:
    """Read an Executable.

    Raises: UnreadableError when a file is missing or malformed; CsrunError when the program is not
        the one that was compiled.
    """
    try:
        plan = msgspec.json.decode((directory / PLAN_FILE).read_bytes(), type=Plan)
        program = (directory / PROGRAM_FILE).read_text()
    except (OSError, ValueError) as error:  # msgspec's errors, and text that is no UTF-8
        raise UnreadableError(
            f"{directory}: not a compile directory: {error}; remove it and compile again"
        ) from error
    if program_digest(program) != plan.program_digest:
        raise CsrunError(
            f"{directory / PROGRAM_FILE}: not the program that was compiled; "
            "remove the directory and compile again"
        )
    return Executable(directory, plan, program)
