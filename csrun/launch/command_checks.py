"""Checks of the folders and the command line, before anything runs."""

import difflib
import os
import shlex
import shutil
import sys
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.launch.user_command import INTERPRETERS, UserCommand
from csrun.site import Site

_YAML = (".yaml", ".yml")
OWN_COMMANDS = ("cs", "cs_input_analyzer", "csctl", "csrun_cpu", "csrun_wse")


def require_command(command: tuple[str, ...], example: str) -> None:
    """Raises: UsageError without a command"""
    if not command:
        raise UsageError(f"no command given: add one, e.g. {example}")


def check_working_dir() -> None:
    """Check that the working directory of the command exists.

    Raises: UsageError if it has been removed meanwhile
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder no longer exists: cd to another") from error


def check_mounts(mount_dirs: tuple[str, ...], site: Site) -> None:
    """Check the folders that are mounted for the tasks, including those of the site.

    Raises: UsageError for a path that is not a folder
    """
    for mount in mount_dirs:
        if not os.path.isdir(mount):
            raise UsageError(f"--mount-dirs: {mount} is not a folder")
    for mount in site.mount_dirs:
        if not os.path.isdir(mount):
            raise UsageError(f"site {site.name}: mount_dirs: {mount} is not a folder")


def check_command(command: UserCommand) -> None:
    """Check that the command's program, or the script of csrun's interpreter, exists.

    Raises: UsageError if it does not exist
    """
    if command.mode is None:
        check_program(command.argv[0])
    check_script(command)


def check_script(command: UserCommand) -> None:
    """Check that the script of a Python interpreter, and its params file, exist.

    Raises: UsageError if one does not exist, or the script cannot be read
    """
    script = command.script
    if script is None:
        return
    if not os.path.exists(script):
        raise UsageError(f"{script}: no such file in {Path.cwd()}")
    if not os.access(script, os.R_OK):
        raise UsageError(f"{script}: cannot be read: Permission denied; run chmod u+r on it")
    params = command.params or ""
    if params.endswith(_YAML) and not os.path.exists(params):  # otherwise each task would report it
        where = Path.cwd()
        raise UsageError(
            f"--params: {params}: cannot be read: No such file in {where}; name another"
        )


def check_program(program: str, path: str | None = None) -> None:
    """Find a program by name, in `path` (default: PATH), or by path.

    Raises: UsageError if it does not exist or is not executable
    """
    if shutil.which(program, path=path) is None:
        raise UsageError(f"{shlex.quote(program)}: {_why_not(program)}{_meant(program)}")


def _why_not(program: str) -> str:
    is_path = os.sep in program
    if is_path and os.path.isdir(program):
        return "is a folder, not a command"
    if is_path and os.path.exists(program):
        return "is not executable: run chmod +x on it, or run it with its interpreter"
    if " " in program:
        return "command not found (pass the command and its arguments as separate words)"
    return "no such file" if is_path else "command not found"


def _meant(program: str) -> str:
    """Return the interpreter or command of csrun with a similar name, or why its own is missing."""
    if program in (*INTERPRETERS, *OWN_COMMANDS):
        own = Path(sys.executable).with_name(program)
        if own.exists():
            return f": add {own.parent} to PATH"
        return f" in {own.parent}; csrun's installation is incomplete: reinstall csrun"
    close = difflib.get_close_matches(program, (*INTERPRETERS, *OWN_COMMANDS), n=1)
    return f"; did you mean {close[0]}?" if close else ""
