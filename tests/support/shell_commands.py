"""Command lines as a user types them: csrun's commands on the path, a separate home."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from configparser import ConfigParser
from pathlib import Path

from support.pages import CHECKOUT

SETUP = ConfigParser()
SETUP.read(CHECKOUT / "setup.cfg")
ENTRIES = SETUP["options.entry_points"]["console_scripts"].split("\n")[1:]
SITE = CHECKOUT / "site_configs" / "local.yaml"
LINE_S = 240


def write_commands(folder: Path) -> None:
    """Write csrun's console commands, and `python`, of this interpreter, into a folder."""
    folder.mkdir()
    for entry in ENTRIES:
        name, module, function = re.fullmatch(r"(\S+) = (\S+):(\w+)", entry).groups()
        start = f"import sys; sys.argv[0] = '{name}'; from {module} import {function} as f; f()"
        _write(folder / name, f'-P -c "{start}"')
    _write(folder / "python", "")


def _write(path: Path, words: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
    path.chmod(0o755)


def run_line(line: str, folder: Path, home: Path) -> tuple[int, str, Path]:
    """Run a line in a shell: its exit code, what it wrote, and the folder that it went to.

    home: where write_commands has made `bin`.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CSRUN_STATE", "CSRUN_SITE", "XDG_"))
    }
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f'{line}\ncode=$?; pwd > "$HOME/cwd"; exit $code'],
        cwd=folder, env={**kept, "HOME": str(home), "PATH": path, "SITE": str(SITE)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LINE_S,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, Path((home / "cwd").read_text().strip())


def run_lines(lines: Sequence[str], home: Path) -> str:
    """Run lines that must all succeed; return the output of the last one."""
    folder, said = home, ""
    for line in lines:
        code, said, folder = run_line(line, folder, home)
        assert code == 0, f"$ {line}\n{said}"
    return said
