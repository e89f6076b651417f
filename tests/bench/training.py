"""Training steps per second: pipelined, streaming and CPU runs compared with the best of PyTorch.

Every side is a whole run as a user starts it, on all CPUs; its own measure of its steps counts,
without compile and start. PyTorch runs eager and compiled, with one thread and with one for each
CPU, which spin or sleep while they wait (OMP_WAIT_POLICY), over batches that are in memory;
the fastest of these is the baseline. The machine's peak is that of one large float32 matrix product
on all CPUs; a side's share of it says how far it is from what the machine can do. Words on the
command line select workloads by their names.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
from result import Result, interleaved
from workloads import MODEL, WORKLOADS, Workload

ROUNDS = 5
BASELINE, PEAK = "best of PyTorch", "matrix-product peak"
SIDES = {
    "pipelined": ("csrun_wse", "--total-nodes=2", "--tasks-per-node=1", "python"),
    "streaming": ("csrun_wse", "--total-nodes=3", "--tasks-per-node=1", "python-ws"),
    "CPU run": ("python",),
}


def csrun_run(workload: Workload, params: Path, command: tuple[str, ...]) -> float:
    """Steps per second of one run of the reference model, from its performance.json."""
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        arguments = ["--params", str(params), "--max_steps", str(workload.steps)]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(
            [*command, "run.py", *arguments, "--model_dir", f"{folder}/model_dir"],
            cwd=MODEL,
            env={**os.environ, "PATH": path, "CSRUN_STATE_DIR": f"{folder}/state"},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        performance = json.loads(
            Path(folder, "model_dir", "performance", "performance.json").read_text()
        )
        return workload.steps / performance["total_time"]


def torch_run(workload: Workload, params: Path, threads: int, form: str, policy: str) -> float:
    """Steps per second of PyTorch, in a separate process."""
    done = subprocess.run(
        [sys.executable, "peers.py", str(params), str(threads), form, str(workload.steps)],
        cwd=Path(__file__).parent,
        env={**os.environ, "OMP_WAIT_POLICY": policy},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout.splitlines()[-1])


def peers(workload: Workload, params: Path) -> dict[str, Callable[[], float]]:
    """The ways in which PyTorch runs."""
    ways = {(1, "passive")} | {(_cpus(), policy) for policy in ("active", "passive")}
    return {
        f"PyTorch {form}, {threads} threads, {policy} waiting": partial(
            torch_run, workload, params, threads, form, policy
        )
        for form in ("eager", "compiled")
        for threads, policy in sorted(ways)
    }


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def peak_flops(size: int = 2048) -> float:
    """FLOP/s of a float32 matrix product, size x size x size."""
    a, b = (np.full((size, size), value, np.float32) for value in (0.5, 2.0))
    out = np.empty_like(a)
    np.matmul(a, b, out=out)
    started = time.perf_counter()
    np.matmul(a, b, out=out)
    return 2 * size**3 / (time.perf_counter() - started)


def flops_per_step(params: "object") -> float:
    """Multiply-adds of all products, forward and backward, counted as two; own formula."""
    sizes = [784, *params.model.hidden_sizes, 10]
    products = [prod(pair) for pair in pairwise(sizes)]
    # forward and the kernel's gradient for all layers, the input's gradient for all but the first
    return 2 * params.train_input.batch_size * (3 * sum(products) - products[0])


def bench(workload: Workload) -> None:
    """Measure all sides of a workload in turn and print their medians."""
    from params import Params

    from csrun.params import load

    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        path = workload.write_params(Path(folder))
        flops = flops_per_step(load(Params, path))
        theirs = peers(workload, path)
        medians = interleaved(
            {
                **{name: partial(csrun_run, workload, path, each) for name, each in SIDES.items()},
                **theirs,
                PEAK: lambda: peak_flops() / flops,
            },
            ROUNDS,
        )
    best = max(medians[name] for name in theirs)
    for name, value in medians.items():
        wanted = workload.wanted if name == "pipelined" else None
        _print(workload, name, value, BASELINE, best, wanted)
    pipelined, streaming = medians["pipelined"], medians["streaming"]
    _print(workload, "pipelined", pipelined, PEAK, medians[PEAK], workload.of_peak)
    _print(workload, "streaming", streaming, "pipelined", pipelined, workload.streamed)


def _print(
    workload: Workload,
    side: str,
    value: float,
    baseline: str,
    other: float,
    wanted: float | None = None,
) -> None:
    Result(
        "training", workload.name, side, "steps/s", value, baseline, value / other, ROUNDS, wanted
    ).print()


if __name__ == "__main__":
    for each in WORKLOADS:
        if all(word in each.name for word in sys.argv[1:]):
            bench(each)
