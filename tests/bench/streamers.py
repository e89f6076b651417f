"""Training with 1, 4 and 96 streamers: steps per second, and the processor time of a step.

The machine is the same, so that more streamers can make nothing faster here where one feeds the
wafer; the target is how little they make slower. All jobs are there at once, and all but one of
them stopped: they are resumed in turn, for a second each, so that other load on the machine affects
all equally. Processor time is that of all processes of a job; on a busy machine it says more than
the steps per second.
"""

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from processes import cpu_seconds, family
from result import Result
from workloads import MODEL

FROM = 2000  # steps: with 96 streamers each has made its first 20 batches
LOG_STEPS = 250
STALE = 2  # log lines: one may have been on its way while the job was stopped
MEASURED = 4  # further ones
MANY_STEPS = 10**7
ROUNDS = 9
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


class Job:
    """One training of fc_mnist, which is stopped but for its turns. A context manager."""

    def __init__(self, mode: str, streamers: int) -> None:
        self._command = _command(mode, streamers)

    def __enter__(self) -> "Job":
        self._folder = tempfile.TemporaryDirectory(prefix="csrun-bench-")
        folder = self._folder.name
        params = (MODEL / "configs" / "params.yaml").read_text()
        for key, value in (("log_steps", LOG_STEPS), ("save_checkpoints_steps", MANY_STEPS)):
            params = re.sub(f"{key}: .*", f"{key}: {value}", params)
        Path(folder, "params.yaml").write_text(params)
        options = ["--params", "params.yaml", "--max_steps", str(MANY_STEPS)]
        self._launcher = subprocess.Popen(
            [*self._command, str(MODEL / "run.py"), *options],
            cwd=folder, env={**os.environ, "CSRUN_STATE_DIR": f"{folder}/state"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(FROM // LOG_STEPS):
            self._line()
        self.stop()
        return self

    def __exit__(self, *raised: object) -> None:
        self.resume()
        self._launcher.send_signal(signal.SIGINT)
        self._launcher.communicate()
        self._folder.cleanup()

    @property
    def state(self) -> str:
        """Folder of csrun's state that it is registered in."""
        return f"{self._folder.name}/state"

    def resume(self) -> None:
        """Let it run until it is stopped."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop all of its processes but the launcher."""
        self._signal(signal.SIGSTOP)

    def measure(self, least_s: float = 0.0) -> Rate:
        """Resume the job, measure it for at least this long, and stop it again."""
        self.resume()
        for _ in range(STALE):
            began = ended = self._line()
        lines = 0
        while lines < MEASURED or ended[0] - began[0] < least_s:
            ended, lines = self._line(), lines + 1
        self.stop()
        wall_s, cpu_s = (after - before for before, after in zip(began, ended, strict=True))
        steps = lines * LOG_STEPS
        return Rate(steps / wall_s, cpu_s / steps * 1e6)

    def _line(self) -> tuple[float, float]:
        """The clock, and the job's processor seconds, when the log says how far it is."""
        assert self._launcher.stdout is not None
        next(line for line in self._launcher.stdout if "global_step = " in line)
        return time.perf_counter(), cpu_seconds(family(self._launcher.pid))

    def _signal(self, number: int) -> None:
        """To all processes of the job but the launcher."""
        for pid in family(self._launcher.pid)[1:]:
            os.kill(pid, number)


def _command(mode: str, streamers: int) -> list[str]:
    interpreter, single = MODES[mode]
    per_node = min(streamers, TASKS_PER_NODE)
    return [
        str(BINARIES / "csrun_wse"),
        f"--total-nodes={single + streamers // per_node}", f"--single-task-nodes={single}",
        f"--tasks-per-node={per_node}", "--cpus-per-task=1", interpreter,
    ]  # fmt: skip


def bench(mode: str) -> None:
    """Alternate between numbers of streamers, and print the medians relative to one streamer."""
    found: dict[int, list[Rate]] = {streamers: [] for streamers in STREAMERS}
    with ExitStack() as running:
        jobs = {n: running.enter_context(Job(mode, n)) for n in STREAMERS}
        for _ in range(ROUNDS):
            for streamers, job in jobs.items():
                found[streamers].append(job.measure())
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
