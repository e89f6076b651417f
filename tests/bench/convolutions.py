"""Training steps of convolution networks compared with PyTorch, with one thread and with all CPUs.

Steps per second of csrun, of its program with NumPy kernels, of PyTorch eager and, where it can be
built in time, of torch.compile. All begin with the same weights. The baseline of a row is PyTorch
eager with as many threads; a network's last row is csrun with all CPUs compared with the best of
eager with one thread and with all.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from image_nets import NETWORKS, Step, Training
from result import Result, interleaved

ROUNDS, ROUND_S = 5, 0.3  # seconds of a side in a round, at least a step
BASELINE, COMPILED = "PyTorch eager", "torch.compile"
AT_LEAST = 1.0


def bench(number: int, compiles: bool) -> None:
    """Print the medians of each side over those of PyTorch eager."""
    import torch

    network = NETWORKS[number]
    cpus = len(os.sched_getaffinity(0))
    found: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        training = Training(network, Path(folder))
        for threads in sorted({1, cpus}):
            torch.set_num_threads(threads)
            steps = {
                "csrun": training.ours(threads),
                "csrun, NumPy kernels": training.ours(threads, by_numpy=True),
                BASELINE: training.theirs(),
            }
            if compiles:
                steps[COMPILED] = training.theirs(compiled=True)
            sides = {name: _side(step) for name, step in steps.items()}
            found[threads] = interleaved(sides, ROUNDS)
            _print(f"{network.name}, {threads} threads", found[threads], BASELINE)
    best = max(medians[BASELINE] for medians in found.values())
    ours = found[cpus]["csrun"]
    Result(
        "convolutions", network.name, "csrun, all CPUs", "steps/s", ours, "best of PyTorch eager",
        ours / best, ROUNDS, at_least=AT_LEAST,
    ).print()  # fmt: skip


def _print(workload: str, medians: dict[str, float], baseline: str) -> None:
    for side, value in medians.items():
        Result(
            "convolutions", workload, side, "steps/s", value, baseline, value / medians[baseline],
            ROUNDS, at_least=AT_LEAST if side == "csrun" else None,
        ).print()  # fmt: skip


def _side(step: Step) -> Callable[[], float]:
    """Steps per second in a round; a step is run before."""
    step()

    def measure() -> float:
        started, count = perf_counter(), 0
        while not count or perf_counter() - started < ROUND_S:
            step()
            count += 1
        return count / (perf_counter() - started)

    return measure


if __name__ == "__main__":
    match sys.argv[1:]:
        case [number, *options]:
            bench(int(number), "compile" in options)
        case _:
            for each in range(len(NETWORKS)):
                subprocess.run([sys.executable, __file__, str(each), "compile"], check=True)
