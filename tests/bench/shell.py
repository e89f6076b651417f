"""Time of one command of the admin shell, compared with a Python process that imports click."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from result import Result, interleaved

CS = str(Path(sys.executable).parent / "cs")
ONE_SHOT = "cs config execmode show"
IMPORT = "python -c 'import click'"
LIMIT_S = 0.2
ROUNDS = 15


def answers() -> list[Result]:
    """Seconds from the start of the command to its end."""
    with tempfile.TemporaryDirectory() as state:
        sides: dict[str, Callable[[], float]] = {
            ONE_SHOT: lambda: _seconds([CS, *ONE_SHOT.split()[1:]], state),
            IMPORT: lambda: _seconds([sys.executable, "-c", "import click"], state),
        }
        medians = interleaved(sides, ROUNDS)
    shot = medians[ONE_SHOT]
    return [
        Result("shell", "cs answers", ONE_SHOT, "s", shot, IMPORT, shot / medians[IMPORT], ROUNDS),
        Result("shell", "cs answers", ONE_SHOT, "s", shot, f"the limit, {LIMIT_S:g} s",
               shot / LIMIT_S, ROUNDS, at_most=1.0),
    ]  # fmt: skip


def _seconds(command: list[str], state: str) -> float:
    environment = {**os.environ, "CSRUN_STATE_DIR": state}
    started_s = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - started_s


if __name__ == "__main__":
    for result in answers():
        result.print()
