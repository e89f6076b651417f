"""How long fc_mnist takes to be validated and compiled, beyond the start of Python."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from result import Result, interleaved

FOLDER = Path(__file__).parents[2] / "reference_models" / "fc_mnist"
START = "start of Python"
LIMITS_S = {"--validate_only": 1.0, "--compile_only": 3.0}
ROUNDS = 9


def compile_times() -> list[Result]:
    """Each beside the start, and what is beyond the start beside its limit.

    Every round compiles into a folder of its own: no compile is found there.
    """
    sides: dict[str, Callable[[], float]] = {START: lambda: _seconds([sys.executable, "-c", ""])}
    for option in LIMITS_S:
        command = [sys.executable, str(FOLDER / "run.py"), option]
        sides[option] = lambda command=command: _seconds(command)
    medians = interleaved(sides, ROUNDS)
    found = [
        Result("compile", "fc_mnist compiles", side, "s", value, START, value / medians[START],
               ROUNDS)
        for side, value in medians.items()
    ]  # fmt: skip
    for option, limit_s in LIMITS_S.items():
        beyond_s = medians[option] - medians[START]
        found.append(
            Result("compile", "fc_mnist compiles", f"{option}, beyond the start", "s", beyond_s,
                   f"the limit, {limit_s:g} s", beyond_s / limit_s, ROUNDS, at_most=1.0)
        )  # fmt: skip
    return found


def _seconds(command: list[str]) -> float:
    """Wall time of a command in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CSRUN_STATE_DIR": f"{folder}/state"}
        started_s = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        return time.perf_counter() - started_s


if __name__ == "__main__":
    for result in compile_times():
        result.print()
