"""What is looked at before anything runs: the folders and the command that were named."""

import os
import shlex
import shutil
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.base.version import VERSION
from csrun.launch.interpreters import NOT_YET, mode_of, own_name
from csrun.site import Site


def check_working_dir() -> None:
    """The folder that the command was given in.

    Raises: UsageError when it has been removed meanwhile
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder has been removed: cd to one that is there") from error


def check_mounts(mount_dirs: tuple[str, ...], site: Site) -> None:
    """The folders that tasks need to see, those of the site with them.

    Raises: UsageError for one that is no folder
    """
    for mount in mount_dirs:
        if not Path(mount).is_dir():
            raise UsageError(f"--mount-dirs: {mount} is not a folder")
    for mount in site.mount_dirs:
        if not Path(mount).is_dir():
            raise UsageError(f"site {site.name}: mount_dirs: {mount} is not a folder")


def check_command(command: tuple[str, ...]) -> None:
    """The command's program, or the script that an interpreter of csrun's is to run.

    Raises: UsageError for one that is not there
    """
    if mode_of(command) is None:
        check_program(command[0])
        return
    script = command[1] if len(command) > 1 else "-"
    if not script.startswith("-") and not Path(script).exists():
        raise UsageError(f"{script}: no such file in {Path.cwd()}")


def check_program(program: str, path: str | None = None) -> None:
    """The program by name, in `path` (else PATH), or by its own path.

    Raises: UsageError when there is none, or none that can be run, or csrun has none yet
    """
    if own_name(program) in NOT_YET:
        raise UsageError(
            f"{program} is not available yet in csrun {VERSION}: use python (layer pipelined) or"
            " python-ws (weight streaming)"
        )
    if shutil.which(program, path=path) is None:
        raise UsageError(f"{shlex.quote(program)}: {_why_not(program)}")


def _why_not(program: str) -> str:
    is_path = os.sep in program
    if is_path and Path(program).is_dir():
        return "is a folder, not a command"
    if is_path and Path(program).exists():
        return "is not executable: make it so, or name its interpreter before it"
    if " " in program:
        return "command not found (a command and its arguments are words of their own)"
    return "no such file" if is_path else "command not found"
