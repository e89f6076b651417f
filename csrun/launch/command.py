"""Checks of the folders and the command line, before anything runs."""

import difflib
import os
import shlex
import shutil
import sys
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.base.python_options import split_options
from csrun.context import Preparation
from csrun.site import Site

VERSIONED = f"python{sys.version_info.major}.{sys.version_info.minor}"

MODES: dict[str, ExecutionMode] = {
    "python": ExecutionMode.PIPELINED,
    "python3": ExecutionMode.PIPELINED,
    VERSIONED: ExecutionMode.PIPELINED,
    "python-pt": ExecutionMode.PIPELINED,
    "python-ws": ExecutionMode.WEIGHT_STREAMING,
}
OWN_COMMANDS = ("cs", "cs_input_analyzer", "csctl", "csrun_cpu", "csrun_wse")


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
    # not Path.resolve(), which raises for a loop of links
    own = os.path.realpath(path.parent) == os.path.realpath(Path(sys.executable).parent)
    return path.name if own and path.name != word else word


def is_own_executable(word: str) -> bool:
    """True for the absolute path of the Python that runs csrun."""
    return Path(word).is_absolute() and word == sys.executable


def require_command(command: tuple[str, ...], example: str) -> None:
    """Raises: UsageError when there is nothing to run."""
    if not command:
        raise UsageError(f"no command given: add one, e.g. {example}")


def check_working_dir() -> None:
    """The folder that the command was given in.

    Raises: UsageError when it has been removed meanwhile
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder no longer exists: cd to another") from error


def check_mounts(mount_dirs: tuple[str, ...], site: Site) -> None:
    """The folders that tasks need to see, those of the site with them.

    Raises: UsageError for one that is no folder
    """
    for mount in mount_dirs:
        if not os.path.isdir(mount):
            raise UsageError(f"--mount-dirs: {mount} is not a folder")
    for mount in site.mount_dirs:
        if not os.path.isdir(mount):
            raise UsageError(f"site {site.name}: mount_dirs: {mount} is not a folder")


def check_command(command: tuple[str, ...]) -> None:
    """The command's program, or the script that an interpreter of csrun's is to run.

    Raises: UsageError for one that is not there
    """
    if mode_of(command) is None:
        check_program(command[0])
        return
    script = command[1] if len(command) > 1 else "-"
    if script.startswith("-"):
        return
    if not os.path.exists(script):
        raise UsageError(f"{script}: no such file in {Path.cwd()}")
    if not os.access(script, os.R_OK):
        raise UsageError(f"{script}: cannot be read: Permission denied; run chmod u+r on it")
    params = option(command[2:], _PARAMS) or ""
    if params.endswith(_YAML) and not os.path.exists(params):  # else each task would find it out
        where = Path.cwd()
        raise UsageError(
            f"--params: {params}: cannot be read: No such file in {where}; name another"
        )


def without_options(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command without the options of its Python, as `-u`: the script is its second word."""
    if mode_of(command) is None:
        return command
    return (command[0], *split_options(command[1:])[1])


def params_of(command: tuple[str, ...]) -> str | None:
    """The params file that the words of a Python of csrun's name."""
    return None if mode_of(command) is None else option(command[2:], _PARAMS)


def named_mode(command: tuple[str, ...]) -> str | None:
    """Mode that the words after a script name; the last one counts, as for the script."""
    given = [
        option(command[at:], _MODE)
        for at, word in enumerate(command)
        if at > 1 and (word in _MODE or _attached(word, _MODE) is not None)
    ]
    return given[-1] if given else None


def with_params(command: tuple[str, ...], path: str) -> tuple[str, ...]:
    """The command with this params file in the place of its own."""
    words = []
    for word, before in zip(command, ("", *command), strict=False):
        if (old := _attached(word, _PARAMS)) is not None:
            words.append(word.removesuffix(old) + path)
        else:
            words.append(path if before in _PARAMS else word)
    return (*command[:2], *words[2:])


def named_system(command: tuple[str, ...]) -> str | None:
    """The CS system that a command's words ask for, by name or address."""
    return option(command, ("--cs_ip", "--cs-ip"))


def wgt_servers_of(command: tuple[str, ...], asked: int | None) -> int:
    """Number of MemoryX tasks: of csrun_wse's option, or of its command's words.

    Raises: UsageError where the two differ, or the command cannot have several
    """
    said = option(command[2:], _WGT_SERVERS) if mode_of(command) else None
    count = int(said) if said and said.isdecimal() else None  # what is no number, the script tells
    if None not in (asked, count) and asked != count:
        raise UsageError(
            f"--num-wgt-servers {asked} conflicts with the command's --num_wgt_servers {said}: give"
            " only one of them"
        )
    found = asked or count or 1
    if found > 1 and mode_of(command) is not ExecutionMode.WEIGHT_STREAMING:
        raise UsageError(
            f"--num-wgt-servers {found}: {command[0]} has no MemoryX: run the script with"
            " python-ws, or drop the option"
        )
    return found


def systems_of(command: tuple[str, ...]) -> int:
    """Number of CS systems that a command's words ask for; the script refuses what is no number."""
    said = option(command[2:], _SYSTEMS)
    return max(1, int(said)) if said and said.isdecimal() else 1


def check_program(program: str, path: str | None = None) -> None:
    """The program by name, in `path` (else PATH), or by its own path.

    Raises: UsageError when there is none, or none that can be run
    """
    if shutil.which(program, path=path) is None:
        raise UsageError(f"{shlex.quote(program)}: {_why_not(program)}{_meant(program)}")


def _why_not(program: str) -> str:
    is_path = os.sep in program
    if is_path and os.path.isdir(program):
        return "is a folder, not a command"
    if is_path and os.path.exists(program):
        return "is not executable: chmod +x it, or put its interpreter before it"
    if " " in program:
        return "command not found (pass the command and its arguments as separate words)"
    return "no such file" if is_path else "command not found"


def _meant(program: str) -> str:
    """The interpreter or command of csrun's whose name is like this one."""
    close = difflib.get_close_matches(program, (*MODES, *OWN_COMMANDS), n=1)
    return f"; did you mean {close[0]}?" if close else ""


_MODE = ("-m", "--mode")
_WGT_SERVERS = ("--num_wgt_servers", "--num-wgt-servers")
_SYSTEMS = ("--num_csx", "--num-csx")
_PARAMS, _YAML = ("-p", "--params"), (".yaml", ".yml")  # other scripts' -p may be anything
_TRAIN = "train"
_PREPARATIONS = {each.value: each for each in Preparation}


def is_preparing(command: tuple[str, ...]) -> bool:
    """True for a command that only compiles or validates."""
    return preparation_of(command) is not None


def preparation_of(command: tuple[str, ...]) -> Preparation | None:
    """Request in a command's words, a mode or a switch, that replaces a run."""
    asked = (_asked(word, before) for word, before in zip(command, ("", *command), strict=False))
    return next(filter(None, asked), None)


def _asked(word: str, before: str) -> Preparation | None:
    if (value := _attached(word, _MODE)) is not None:
        text = value
    elif before in _MODE:
        text = word
    else:
        text = word[2:].replace("-", "_") if word.startswith("--") else ""
    return _PREPARATIONS.get(text)


def prepared(command: tuple[str, ...]) -> tuple[str, ...]:
    """The training that a command compiles or validates for."""
    words: list[str] = []
    for word, before in zip(command, ("", *command), strict=False):
        if _asked(word, before) is None:
            words.append(word)
        elif before in _MODE:
            words.append(_TRAIN)
        elif value := _attached(word, _MODE):
            words.append(word.removesuffix(value) + _TRAIN)
    return tuple(words)


def option(command: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    """The value of an option in a command's words: `--mode x`, `--mode=x` or `-mx`."""
    for word, following in zip(command, (*command[1:], None), strict=False):
        if word in names:
            return following
        if (value := _attached(word, names)) is not None:
            return value
    return None


def _attached(word: str, names: tuple[str, ...]) -> str | None:
    """The value in the word of an option itself, None where there is none."""
    name, equals, value = word.partition("=")
    if equals and name in names:
        return value
    return word[2:] if len(word) > 2 and word[:2] in names else None
