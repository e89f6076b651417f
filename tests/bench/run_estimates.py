"""`csrun estimate` beside the job that follows it: memory of its tasks, time of a step.

Each round estimates and then runs, so that what disturbs the machine for a while disturbs both.
A step's time is without waits for batches. Memory is the most that all processes of the job have
taken together, pages of libraries once.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from overlap import COMMANDS, FIT_BOTH, MODELS, Fits, write_params
from processes import family, job_mb
from result import Result

ROUNDS = 3
SAMPLE_S = 0.1
OFF_MEMORY, OFF_TIME = 0.1, 0.3  # promised: the most that an estimate is off
CNN = Fits("cnn_mnist", "cnn_mnist", 100)
IN_16_BITS = tuple(
    replace(each, name=f"{each.name}, {precision}", precision=precision)
    for each, precision in (
        (FIT_BOTH[1], "mixed_float16"),
        (CNN, "mixed_cbfloat16"),
        (FIT_BOTH[2], "mixed_bfloat16"),
    )
)
WORKLOADS = (*FIT_BOTH[:2], CNN, FIT_BOTH[2], *IN_16_BITS)


class Measured(NamedTuple):
    """Estimate, or measurement of a run. Units: MiB, ms"""

    memory_mb: float
    step_ms: float


def bench_estimates(workload: Fits, mode: str) -> None:
    """Print memory and step of a job over those that were estimated."""
    pairs = [_measured(workload, COMMANDS[mode]) for _ in range(ROUNDS)]
    name = f"{workload.name}, {mode}"
    for side, unit, field, off in (
        ("memory of the job", "MiB", "memory_mb", OFF_MEMORY),
        ("step", "ms", "step_ms", OFF_TIME),
    ):
        value = statistics.median(getattr(measured, field) for _, measured in pairs)
        ratios = [getattr(m, field) / getattr(e, field) for e, m in pairs]
        Result(
            "run_estimates", name, side, unit, value, "csrun estimate", statistics.median(ratios),
            ROUNDS, at_least=1 - off, at_most=1 + off,
        ).print()  # fmt: skip


def _measured(workload: Fits, command: tuple[str, ...]) -> tuple[Measured, Measured]:
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        write_params(Path(folder), workload)
        *layout, interpreter = command
        script = str(MODELS / workload.model / "run.py")
        words = (interpreter, script, "--params", "params.yaml")
        found = _estimate(folder, words)
        memory_mb = _run(folder, (*layout, *words))
        text = Path(folder, "model_dir", "performance", "performance.json").read_text()
    host_mb = sum(each["tasks"] * each["nbytes"] for each in found["host"]) / (1 << 20)
    return (
        Measured(host_mb, 1e3 * found["step_s"]),
        Measured(memory_mb, 1e3 * json.loads(text)["step_time"]),
    )


def _estimate(folder: str, words: tuple[str, ...]) -> dict[str, Any]:
    done = subprocess.run(
        [*_csrun("csrun"), "estimate", "-o", "json", *words, "--compile_only"],
        cwd=folder, env=_environment(folder), check=True, capture_output=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _run(folder: str, words: tuple[str, ...]) -> float:
    """Run a job; the most memory of its processes, in MiB.

    Raises: RuntimeError when it fails
    """
    log = Path(folder, "log")
    most_mb = 0.0
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_csrun("csrun_wse"), *words],
            cwd=folder, env=_environment(folder), stdout=output, stderr=output,
        )  # fmt: skip
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):  # it has just ended
                most_mb = max(most_mb, job_mb(family(process.pid)))
            time.sleep(SAMPLE_S)
    if process.returncode:
        raise RuntimeError(log.read_text())
    return most_mb


def _csrun(command: str) -> list[str]:
    return [sys.executable, "-m", f"csrun.cli.{command}"]


def _environment(folder: str) -> dict[str, str]:
    return {**os.environ, "CSRUN_STATE_DIR": f"{folder}/state"}


def main() -> None:
    """All models in both modes."""
    for workload in WORKLOADS:
        for mode in COMMANDS:
            bench_estimates(workload, mode)


if __name__ == "__main__":
    main()
