"""What weight streaming takes of memory, with the store there and on disk; and first values.

A GPT trains by AdamW in a job of three nodes, from its first values to a checkpoint after a few
steps. What is told is the most that all processes of the job have taken together, by their
proportional shares. GPT-3 XL is measured where its name is given, or the machine has the memory.

    streaming.py [WORKLOAD...] [memory|disk...]
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import psutil
from processes import family, pss_mb
from result import Result, interleaved

RUN = Path(__file__).parents[2] / "reference_models" / "gpt2" / "run.py"
VOCABULARY, LENGTH, STEPS = 50257, 256, 2
WATCH_S = 0.25
GIB = 1 << 30
STORES = ("memory", "disk")
DRAWN, TENSORS, THREADS, ROUNDS = 1 << 22, 8, 2, 5
NUMPY = "NumPy's float32 standard_normal, one thread"


@dataclass(frozen=True)
class Workload:
    """A GPT, and the most that its training may take of memory. Units: GiB

    memory_gib: with the store in memory; disk_gib: on disk, when the store may take store_gib.
    """

    width: int
    layers: int
    heads: int
    memory_gib: float
    disk_gib: float
    store_gib: float

    @property
    def weights(self) -> int:
        """Brown et al. 2020, section 2.1: 12 d² a block, beside its biases; the tables."""
        block = 12 * self.width**2 + 13 * self.width
        return self.layers * block + (VOCABULARY + LENGTH + 2) * self.width


WORKLOADS = {
    "GPT-2 medium": Workload(1024, 24, 16, 5.5, 3.7, 2.0),
    "GPT-3 XL": Workload(2048, 24, 16, 18.0, 12.0, 8.5),
}


def bench_memory(name: str, stores: Collection[str]) -> None:
    """Print the most that a job takes with each of the stores, beside its limit."""
    workload = WORKLOADS[name]
    limits = {"memory": workload.memory_gib, "disk": workload.disk_gib}
    for store, limit in ((each, limits[each]) for each in stores):
        with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
            peak, seconds = _trained(Path(folder), workload, store)
        what = f"{name}, {workload.weights / 1e6:,.0f} M weights, {STEPS} steps in {seconds:.0f} s"
        baseline = f"the limit, {limit:g} GiB"
        Result(
            "streaming", what, f"store: {store}",
            "GiB PSS", peak, baseline, peak / limit, 1, at_most=1.0,
        ).print()  # fmt: skip


def _trained(folder: Path, workload: Workload, store: str) -> tuple[float, float]:
    """The peak of all processes in GiB, and the seconds of the run."""
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 64 * LENGTH + 1).astype(np.uint16)
    tokens.tofile(folder / "train.bin")
    (folder / "params.yaml").write_bytes(msgspec.yaml.encode(_params(workload, store, folder)))
    command = [sys.executable, "-m", "csrun.cli.csrun_wse", "--total-nodes", "3",
               "--tasks-per-node", "1", "--cpus-per-task", "1", "python-ws", str(RUN),
               "--mode", "train", "--params", "params.yaml"]  # fmt: skip
    state = {"CSRUN_STATE_DIR": str(folder / "state")}
    started = time.perf_counter()
    with (folder / "log").open("w+") as log:
        launcher = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **state}, stdout=log, stderr=log
        )
        peak = _peak_gib(launcher)
        log.seek(0)
        text = log.read()
    assert launcher.returncode == 0, text
    sys.stderr.writelines(f"{line}\n" for line in text.splitlines() if "Weight store" in line)
    return peak, time.perf_counter() - started


def _params(workload: Workload, store: str, folder: Path) -> dict[str, object]:
    data = {"file": str(folder / "train.bin"), "batch_size": 1}
    options: dict[str, object] = {"weight_store": store}
    if store == "disk":
        options["weight_store_dir"] = str(folder)
        options["weight_store_memory"] = int(workload.store_gib * GIB)
    return {
        "train_input": {**data, "shuffle_seed": 1},
        "eval_input": data,
        "model": {
            "vocabulary": VOCABULARY,
            "max_position_embeddings": LENGTH,
            "hidden_size": workload.width,
            "num_hidden_layers": workload.layers,
            "num_heads": workload.heads,
            "sequence_length": LENGTH,
        },
        "optimizer": {"optimizer_type": "adamw", "learning_rate": 1e-4, "weight_decay": 0.1},
        "runconfig": {
            "model_dir": "model_dir",
            "max_steps": STEPS,
            "keep_checkpoint_max": 1,
            "log_steps": 1,
            **options,
        },
    }


def _peak_gib(launcher: "subprocess.Popen[bytes]") -> float:
    """The most that a process and all that descends from it take together, until it has ended."""
    peak, over = 0.0, threading.Event()
    threading.Thread(target=lambda: (launcher.wait(), over.set()), daemon=True).start()
    while not over.wait(WATCH_S):
        try:
            peak = max(peak, pss_mb(family(launcher.pid)) / 1024)
        except psutil.NoSuchProcess:
            break
    over.wait()
    return peak


def bench_first_values() -> None:
    """Print how fast normal values are drawn, by NumPy alone and by two threads of csrun."""
    from csrun.executable import Initializer, InitializerKind, Parameter, Store
    from csrun.runtime.store.first_values import initialize

    draw = Initializer(InitializerKind.NORMAL, 0.02)
    parameters = tuple(
        Parameter(f"tensor_{n}", "layer", (DRAWN,), "float32", 0, draw) for n in range(TENSORS)
    )
    plan = SimpleNamespace(parameters=parameters, store=Store(0, 0, None, ()))
    state = {p.name: np.ones(p.shape, np.float32) for p in parameters}
    values = np.ones(DRAWN, np.float32)
    generator = np.random.default_rng(1)

    def rate(work, count: int) -> float:
        started = time.perf_counter()
        work()
        return count / (time.perf_counter() - started) / 1e6

    sides = {
        NUMPY: lambda: rate(lambda: generator.standard_normal(dtype=np.float32, out=values), DRAWN),
        f"csrun, {THREADS} threads": lambda: rate(
            lambda: initialize(plan, state, 1, THREADS), TENSORS * DRAWN
        ),
    }
    medians = interleaved(sides, ROUNDS)
    for side, value in medians.items():
        Result(
            "streaming", "normal first values", side, "M/s", value, NUMPY,
            value / medians[NUMPY], ROUNDS, at_least=None if side == NUMPY else 0.8 * THREADS,
        ).print()  # fmt: skip


if __name__ == "__main__":
    given, available = sys.argv[1:], psutil.virtual_memory().available
    stores = [store for store in STORES if store in given] or STORES
    for name, workload in WORKLOADS.items():
        if name in given or (not given and workload.memory_gib * GIB < 0.8 * available):
            bench_memory(name, stores)
    if not given:
        bench_first_values()
