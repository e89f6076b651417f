"""Transformers compared with PyTorch, as many threads on both sides: training steps, and memory.

Steps per second of csrun, of its program with NumPy kernels, of PyTorch eager and torch.compile,
and of one large float32 product with as many operations; once with the environment unchanged, once
without the variables that choose OpenBLAS's core. PyTorch's memory is what a process grows by, at
its peak, from before the weights are there until after some steps; csrun's is the arena, where all
that its program works on lies, and, to compare with, what its process grows by.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from model_steps import BERT, GPT, WIDE_GPT, WORKLOADS, Step, Training, training_of
from processes import peak_rss_mb, rss_mb, with_and_without_openblas
from result import Result, interleaved
from threadpoolctl import threadpool_limits
from training import peak_flops

ROUNDS, STEPS = 7, 2
BASELINE, COMPILED, PEAK = "PyTorch eager", "torch.compile", "sgemm peak"
#: Promised with all CPUs: beside the best of PyTorch, and as a share of the peak.
FASTER = {GPT.name: 1.25, WIDE_GPT.name: 1.15, BERT.name: 1.2}
SHARES = {GPT.name: 0.9, WIDE_GPT.name: 0.92, BERT.name: 0.88}
SIDES: dict[str, Callable[[Training], Step]] = {
    "csrun": lambda training: training.ours(1),
    BASELINE: Training.theirs,
}
MEMORY = "memory"


def bench_speed(number: int, settings: str) -> None:
    """Print the medians of each side over those of PyTorch, with one thread and with all CPUs."""
    import torch

    workload = WORKLOADS[number]
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        training = training_of(workload, Path(folder))
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            torch.set_num_threads(threads)
            steps = {
                "csrun": training.ours(threads),
                "csrun, NumPy kernels": training.ours(threads, by_numpy=True),
                BASELINE: training.theirs(),
                COMPILED: training.theirs(compiled=True),
            }
            for step in steps.values():
                step()
            sides = {name: partial(steps_per_second, step) for name, step in steps.items()}
            sides[PEAK] = lambda threads=threads: products_per_second(training.flops, threads)
            _print(f"{workload.name}, {threads} threads, {settings}", interleaved(sides, ROUNDS),
                   workload.name if threads > 1 else "")  # fmt: skip


def _print(name: str, medians: dict[str, float], promised: str) -> None:
    ours = medians["csrun"]
    best = max(medians[BASELINE], medians[COMPILED])
    for side, value in medians.items():
        at_least = FASTER.get(promised) if side == "csrun" else None
        Result(
            "transformers", name, side, "steps/s", value, "best of PyTorch", value / best,
            ROUNDS, at_least=at_least,
        ).print()  # fmt: skip
    Result(
        "transformers", name, "csrun", "steps/s", ours, PEAK, ours / medians[PEAK], ROUNDS,
        at_least=SHARES.get(promised),
    ).print()  # fmt: skip


def steps_per_second(step: Step) -> float:
    """Without the first step, during which the threads of the side before it may still spin."""
    step()
    started = perf_counter()
    for _ in range(STEPS):
        step()
    return STEPS / (perf_counter() - started)


def products_per_second(flops: float, threads: int) -> float:
    """Steps per second, if all operations of a step were one large product."""
    with threadpool_limits(threads, user_api="blas"):
        return peak_flops() / flops


def bench_memory(number: int) -> None:
    """Print the arena over PyTorch's peak, and what csrun's process takes."""
    workload = WORKLOADS[number]
    (arena, ours), (_, theirs) = (_measured(number, side) for side in SIDES)
    for side, value, limit in (("csrun's arena", arena, 1.0), ("csrun's process", ours, None)):
        Result(
            "transformers", workload.name, side, "MiB", value, f"{BASELINE}'s peak",
            value / theirs, 1, at_most=limit,
        ).print()  # fmt: skip


def _measured(number: int, side: str) -> tuple[float, float]:
    """Arena and growth of a process that only has that side."""
    done = subprocess.run(
        [sys.executable, __file__, MEMORY, str(number), side],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    arena, growth = map(float, done.stdout.split())
    return arena, growth


def tell_memory(number: int, side: str) -> None:
    """Print the size of the arena, and by how much this process grows for training. MiB."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        training = training_of(WORKLOADS[number], Path(folder))
        with threadpool_limits(1, user_api="blas"):
            torch.ones(512, 512) @ torch.ones(512, 512)  # what a library keeps for itself
            before = rss_mb()
            step = SIDES[side](training)
            for _ in range(STEPS):
                step()
    print(training.executable.plan.arena_bytes / 2**20, peak_rss_mb() - before)


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            with_and_without_openblas(__file__)
            for each in range(len(WORKLOADS)):
                bench_memory(each)
        case [settings]:
            for each in range(len(WORKLOADS)):
                subprocess.run([sys.executable, __file__, settings, str(each)], check=True)
        case [settings, number]:
            bench_speed(int(number), settings)
        case [_, number, side]:
            tell_memory(int(number), side)
