"""Compile without a Session's block: `compile` after one step of a loop over a loader."""

from typing import Any

from csrun.base.errors import UsageError
from csrun.context import Preparation
from csrun.pytorch.errors import user_line
from csrun.pytorch.framework.loader_session import Session
from csrun.pytorch.framework.script import script
from csrun.pytorch.user import active

_opened: list[Session] = []


def open_session(loader: Any) -> None:
    """Open a Session for a loop outside of one, in a script that only compiles."""
    model = script.state.model
    if active or not script.compiles_only or model is None:
        return
    session = Session(loader, "train" if model.training else "eval")
    session.__enter__()
    session.wait()
    _opened.append(session)


def compile_step(fabric_config_file: Any = None, validate_only: bool = False) -> bool:
    """Compile the step of the loop, or only match its kernels.

    fabric_config_file: has no effect.

    Raises: UsageError if no loop has made a step
    """
    if not _opened:
        raise UsageError(
            f"{user_line()}: compile: no step was made: initialize(compile_only=True) and iterate "
            "over a cbtorch.dataloader before it"
        )
    session = _opened.pop()
    session.prepare(Preparation.VALIDATE_ONLY if validate_only else Preparation.COMPILE_ONLY)
    session.__exit__(None, None, None)
    return True
