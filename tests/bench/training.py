"""Training steps a second: pipelined, streaming and CPU runs beside PyTorch.

Every side is a whole run as a user starts it; its own measure of its steps counts, without compile
and start. PyTorch gets as many threads as the Executable has for its matrix products, and batches
that lie ready in memory. The machine's peak is that of one large float32 matrix product on as many
threads; a side's share of it says how far it is from what the machine can do.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice, pairwise
from math import prod
from pathlib import Path

import numpy as np
import torch
from peers import make_step, steps_per_second, tensors
from result import Result, interleaved
from threadpoolctl import threadpool_limits
from workloads import MODEL, WORKLOADS, Workload

ROUNDS = 5
BATCHES = 40
STREAMING_OVER_PIPELINED = 0.8  # promised
BASELINE = "PyTorch eager"
SIDES = {
    "pipelined": ("csrun_wse", "--total-nodes=2", "--tasks-per-node=1", "python"),
    "streaming": ("csrun_wse", "--total-nodes=3", "--tasks-per-node=1", "python-ws"),
    "CPU run": ("python",),
}


def csrun_run(workload: Workload, command: tuple[str, ...]) -> float:
    """Steps a second of one run of the reference model, from its performance.json."""
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        arguments = ["--params", str(workload.params_path), "--max_steps", str(workload.steps)]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(
            [*command, "run.py", *arguments, "--model_dir", f"{folder}/model_dir"],
            cwd=MODEL,
            env={**os.environ, "PATH": path, "CSRUN_STATE_DIR": f"{folder}/state"},
            check=True,
            capture_output=True,
        )
        performance = json.loads(
            Path(folder, "model_dir", "performance", "performance.json").read_text()
        )
        return workload.steps / performance["total_time"]


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


def bench(workload: Workload, threads: int = 1) -> None:
    """Measure all sides of a workload in turn and print their medians."""
    from data import train_input_fn
    from params import Params

    from csrun.params import load

    params = load(Params, workload.params_path)
    batches = tensors(list(islice(train_input_fn(params).batches(), BATCHES)))
    torch.set_num_threads(threads)
    sides: dict[str, Callable[[], float]] = {
        name: partial(csrun_run, workload, command) for name, command in SIDES.items()
    }
    for name, compiled in ((BASELINE, False), ("PyTorch torch.compile", True)):
        step = make_step(params, compiled)
        steps_per_second(step, batches, 20)  # compiles, and warms up
        sides[name] = partial(steps_per_second, step, batches, workload.steps)
    with threadpool_limits(threads, user_api="blas"):
        sides["matrix-product peak"] = lambda: peak_flops() / flops_per_step(params)
        medians = interleaved(sides, ROUNDS)
    for name, value in medians.items():
        wanted = workload.pipelined_over_eager if name == "pipelined" else None
        ratio = value / medians[BASELINE]
        Result(
            "training", workload.name, name, "steps/s", value, BASELINE, ratio, ROUNDS, wanted
        ).print()
    streaming, pipelined = medians["streaming"], medians["pipelined"]
    Result(
        "training", workload.name, "streaming", "steps/s", streaming, "pipelined",
        streaming / pipelined, ROUNDS, at_least=STREAMING_OVER_PIPELINED,
    ).print()  # fmt: skip


if __name__ == "__main__":
    for chosen in WORKLOADS:
        bench(chosen)
