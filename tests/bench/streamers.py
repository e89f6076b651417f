"""Training with 1, 4 and 96 streamers: steps a second, and the processor time of a step.

The machine is the same, so that more streamers can make nothing faster here where one feeds the
wafer; the promise is how little they make slower. Processor time is that of all processes of the
job, between two log lines; on a busy machine it says more than the steps a second.
"""

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from processes import cpu_seconds, family
from result import Result
from workloads import MODEL

FROM, TO = 2000, 4000  # steps: with 96 streamers each has made its first 20 batches
MANY_STEPS = 10**7
ROUNDS = 3
STREAMERS = (1, 4, 96)
STEPS_PROMISED = 0.85  # of those with one streamer
BINARIES = Path(sys.executable).parent
# The interpreter, and how many single-task nodes are no streamer's: chief and MemoryX.
MODES = {"streaming": ("python-ws", 2), "pipelined": ("python", 1)}
TASKS_PER_NODE = 8


@dataclass(frozen=True)
class Rate:
    """What was measured of one run; cpu_us: of a step, all processes together."""

    steps_per_s: float
    cpu_us: float


def measure(mode: str, streamers: int) -> Rate:
    """One run of fc_mnist, from its step FROM to its step TO."""
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        params = (MODEL / "configs" / "params.yaml").read_text()
        for key, value in (("log_steps", FROM), ("save_checkpoints_steps", MANY_STEPS)):
            params = re.sub(f"{key}: .*", f"{key}: {value}", params)
        Path(folder, "params.yaml").write_text(params)
        options = ["--params", "params.yaml", "--max_steps", str(MANY_STEPS)]
        with subprocess.Popen(
            [*_command(mode, streamers), str(MODEL / "run.py"), *options],
            cwd=folder, env={**os.environ, "CSRUN_STATE_DIR": f"{folder}/state"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) as launcher:  # fmt: skip
            began = _at_step(launcher, FROM)
            ended = _at_step(launcher, TO)
            launcher.send_signal(signal.SIGINT)
            launcher.communicate()
    wall_s, cpu_s = (after - before for before, after in zip(began, ended, strict=True))
    return Rate((TO - FROM) / wall_s, cpu_s / (TO - FROM) * 1e6)


def _command(mode: str, streamers: int) -> list[str]:
    interpreter, single = MODES[mode]
    per_node = min(streamers, TASKS_PER_NODE)
    return [
        str(BINARIES / "csrun_wse"),
        f"--total-nodes={single + streamers // per_node}", f"--single-task-nodes={single}",
        f"--tasks-per-node={per_node}", "--cpus-per-task=1", interpreter,
    ]  # fmt: skip


def _at_step(launcher: "subprocess.Popen[str]", step: int) -> tuple[float, float]:
    """The clock, and the job's processor seconds, when the log says that it is at a step."""
    assert launcher.stdout is not None
    next(line for line in launcher.stdout if f"global_step = {step}," in line)
    return time.perf_counter(), cpu_seconds(family(launcher.pid))


def bench(mode: str) -> None:
    """Measure each number of streamers in turn, and print the medians beside those of one."""
    found: dict[int, list[Rate]] = {streamers: [] for streamers in STREAMERS}
    for _ in range(ROUNDS):
        for streamers, rates in found.items():
            rates.append(measure(mode, streamers))
    steps = {n: statistics.median(rate.steps_per_s for rate in found[n]) for n in STREAMERS}
    cpu = {n: statistics.median(rate.cpu_us for rate in found[n]) for n in STREAMERS}
    for unit, values, promised in (
        ("steps/s", steps, STEPS_PROMISED),
        ("µs of CPU a step", cpu, None),
    ):
        for streamers in STREAMERS[1:]:
            value, ratio = values[streamers], values[streamers] / values[1]
            Result(
                "streamers", f"fc_mnist 10 x 50, {mode}", f"{streamers} streamers", unit, value,
                "1 streamer", ratio, ROUNDS, at_least=promised,
            ).print()  # fmt: skip


if __name__ == "__main__":
    for chosen in MODES:
        bench(chosen)
