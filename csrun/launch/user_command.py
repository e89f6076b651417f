"""The command of a job, and the facts that its arguments state."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.base.python_options import split_options
from csrun.context import Preparation

VERSIONED = f"python{sys.version_info.major}.{sys.version_info.minor}"

INTERPRETERS: dict[str, ExecutionMode] = {
    "python": ExecutionMode.PIPELINED,
    "python3": ExecutionMode.PIPELINED,
    VERSIONED: ExecutionMode.PIPELINED,
    "python-pt": ExecutionMode.PIPELINED,
    "python-ws": ExecutionMode.WEIGHT_STREAMING,
}

_MODE = ("-m", "--mode")
_WGT_SERVERS = ("--num_wgt_servers", "--num-wgt-servers")
_SYSTEMS = ("--num_csx", "--num-csx")
_SYSTEM = ("--cs_ip", "--cs-ip")
_PARAMS = ("-p", "--params")
_TRAIN = "train"
_PREPARATIONS = {each.value: each for each in Preparation}


@dataclass(frozen=True)
class UserCommand:
    """A command as its arguments, parsed as csrun.params and the PyTorch scripts parse them.

    The script is the second argument; `without_options` drops options of Python before it.
    """

    argv: tuple[str, ...]

    @property
    def interpreter(self) -> str:
        """The first argument; for a path into the folder of csrun's Python its base name."""
        path = Path(self.argv[0])
        # not Path.resolve(), which raises for a loop of links
        own = os.path.realpath(path.parent) == os.path.realpath(Path(sys.executable).parent)
        return path.name if own and path.name != self.argv[0] else self.argv[0]

    @property
    def mode(self) -> ExecutionMode | None:
        """Mode of its interpreter; None if that is not one of csrun's.

        csrun's interpreters are called by name, or by a path into the folder of csrun's Python. The
        path of another Python is another interpreter.
        """
        program = self.argv[0]
        if Path(program).is_absolute() and program == sys.executable:
            return ExecutionMode.PIPELINED
        return INTERPRETERS.get(self.interpreter)

    @property
    def script(self) -> str | None:
        """The script that csrun's interpreter runs; None for `-c`, `-m` or another program."""
        if self.mode is None or len(self.argv) < 2 or self.argv[1].startswith("-"):
            return None
        return self.argv[1]

    def without_options(self) -> "UserCommand":
        """The command without options of its Python, such as `-u`."""
        if self.mode is None:
            return self
        return UserCommand((self.argv[0], *split_options(self.argv[1:])[1]))

    @property
    def params(self) -> str | None:
        """The params file that it names; for other interpreters -p could be anything."""
        return None if self.mode is None else option(self.argv[2:], _PARAMS)

    def with_params(self, path: str) -> "UserCommand":
        """Return the command with another params file."""
        arguments = []
        for before, argument in self._pairs():
            if (old := _attached(argument, _PARAMS)) is not None:
                arguments.append(argument.removesuffix(old) + path)
            else:
                arguments.append(path if before in _PARAMS else argument)
        return UserCommand((*self.argv[:2], *arguments[2:]))

    @property
    def script_mode(self) -> str | None:
        """The --mode of the script; of several the last one."""
        given = [
            option(self.argv[at:], _MODE)
            for at, argument in enumerate(self.argv)
            if at > 1 and (argument in _MODE or _attached(argument, _MODE) is not None)
        ]
        return given[-1] if given else None

    @property
    def system(self) -> str | None:
        """The requested CS system, by name or address."""
        return option(self.argv, _SYSTEM)

    @property
    def num_systems(self) -> int:
        """Number of requested CS systems; the script refuses anything but a number."""
        said = option(self.argv[2:], _SYSTEMS)
        return max(1, int(said)) if said and said.isdecimal() else 1

    def num_wgt_servers(self, asked: int | None) -> int:
        """Return the number of MemoryX tasks, from csrun_wse's option or the command's arguments.

        Raises: UsageError if the two differ, or if the command cannot have several
        """
        said = option(self.argv[2:], _WGT_SERVERS) if self.mode else None
        count = int(said) if said and said.isdecimal() else None  # otherwise the script refuses it
        if None not in (asked, count) and asked != count:
            raise UsageError(
                f"--num-wgt-servers {asked} conflicts with the command's --num_wgt_servers {said}:"
                " give only one of them"
            )
        found = asked or count or 1
        if found > 1 and self.mode is not ExecutionMode.WEIGHT_STREAMING:
            raise UsageError(
                f"--num-wgt-servers {found}: {self.argv[0]} has no MemoryX: run the script with"
                " python-ws, or drop the option"
            )
        return found

    @property
    def preparation(self) -> Preparation | None:
        """The mode or switch that makes it only compile or validate; None for a run."""
        found = (_asked(argument, before) for before, argument in self._pairs())
        return next(filter(None, found), None)

    def prepared_run(self) -> "UserCommand":
        """The training that it compiles or validates for."""
        arguments: list[str] = []
        for before, argument in self._pairs():
            if _asked(argument, before) is None:
                arguments.append(argument)
            elif before in _MODE:
                arguments.append(_TRAIN)
            elif value := _attached(argument, _MODE):
                arguments.append(argument.removesuffix(value) + _TRAIN)
        return UserCommand(tuple(arguments))

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yield each argument with the one before it."""
        return zip(("", *self.argv), self.argv, strict=False)


def option(arguments: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    """Return the value of an option: `--mode x`, `--mode=x` or `-mx`."""
    for argument, following in zip(arguments, (*arguments[1:], None), strict=False):
        if argument in names:
            return following
        if (value := _attached(argument, names)) is not None:
            return value
    return None


def _asked(argument: str, before: str) -> Preparation | None:
    if (value := _attached(argument, _MODE)) is not None:
        text = value
    elif before in _MODE:
        text = argument
    else:
        text = argument[2:].replace("-", "_") if argument.startswith("--") else ""
    return _PREPARATIONS.get(text)


def _attached(argument: str, names: tuple[str, ...]) -> str | None:
    """Return the value attached to an option's argument, or None."""
    name, equals, value = argument.partition("=")
    if equals and name in names:
        return value
    return argument[2:] if len(argument) > 2 and argument[:2] in names else None
