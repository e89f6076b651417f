"""The interpreters that csrun knows, and the execution mode that each one needs."""

import sys
from pathlib import Path

from csrun.base.mode import ExecutionMode

VERSIONED = f"python{sys.version_info.major}.{sys.version_info.minor}"

MODES: dict[str, ExecutionMode] = {
    "python": ExecutionMode.PIPELINED,
    "python3": ExecutionMode.PIPELINED,
    VERSIONED: ExecutionMode.PIPELINED,
    "python-ws": ExecutionMode.WEIGHT_STREAMING,
}
NOT_YET = frozenset({"python-pt"})  # the original's, which this version does not have


def mode_of(command: tuple[str, ...]) -> ExecutionMode | None:
    """The mode that a command's interpreter needs; None when it is not one of csrun's own.

    csrun's own are called by their bare names, or by a path into the folder that csrun's Python is
    in: the path of another Python is another interpreter.
    """
    if is_own_executable(command[0]):
        return ExecutionMode.PIPELINED
    return MODES.get(own_name(command[0]))


def own_name(word: str) -> str:
    """The bare name of a path into the folder of csrun's Python; any other word as it is."""
    path = Path(word)
    own = path.name != word and path.parent.resolve() == Path(sys.executable).parent.resolve()
    return path.name if own else word


def is_own_executable(word: str) -> bool:
    """True for the absolute path of the Python that runs csrun."""
    return Path(word).is_absolute() and word == sys.executable
