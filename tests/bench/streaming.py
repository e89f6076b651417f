"""Memory and time of weight streaming, and speed of initialization.

A GPT trains with AdamW, or GPT-J with SGD, in a job of three nodes, from initialization to a
checkpoint; GPT-J with AdamW without checkpoint, as both need 150 GB. Reported are the peak memory
of all processes of the job, by proportional set size, and for a store on disk the fraction of the
run that direct reads and writes of the same bytes would take. The peer is the model's run_torch.py
in plain PyTorch, with the same sizes. With mixed_bfloat16 the store on disk, whose wafer reads
16-bit words, is compared with that of float32. GPT-3 XL is measured if named, or if the machine has
the memory; GPT-J 6B if named and the disk has 60 GB, 75 for "GPT-J 6B AdamW". overlap.py compares
the time with pipelined runs.

    streaming.py [WORKLOAD...] [memory|disk|PyTorch|mixed_bfloat16...]
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import psutil
from disk import DiskRates, disk_rates
from overlap import FIT_BOTH, bench_overlap
from processes import bytes_moved, family, pss_mb
from result import Result, interleaved

MODELS = Path(__file__).parents[2] / "reference_models"
PLAIN = Path(__file__).parents[1] / "support" / "plain_torch"
LENGTH = 256
WATCH_S = 0.25
GIB = 1 << 30
IN_STEPS = ("compute", "input", "weights", "first_group")  # rows of the ledger
EAGER = "PyTorch"
HALVES = "mixed_bfloat16"
SIDES = ("memory", "disk", EAGER, HALVES)
JOB = ("csrun.cli.csrun_wse", "--total-nodes", "3", "--tasks-per-node", "1",
       "--cpus-per-task", "1", "python-ws")  # fmt: skip
DRAWN, TENSORS, THREADS, ROUNDS = 1 << 22, 8, 2, 5
NUMPY = "NumPy's float32 standard_normal, one thread"


@dataclass(frozen=True)
class Workload:
    """A GPT, and the most that its training may take of memory. Units: GiB

    memory_gib: with the store in memory, None where it is not meant to fit; disk_gib: on disk, when
    the store may take store_gib. is_saved: a checkpoint is written in the end.
    """

    width: int
    layers: int
    heads: int
    memory_gib: float | None
    disk_gib: float
    store_gib: float
    steps: int = 2
    vocabulary: int = 50257
    optimizer: dict[str, Any] = field(default_factory=lambda: {**ADAMW})
    is_saved: bool = True
    precision: str = "float32"
    length: int = LENGTH
    batch: int = 1

    model = "gpt2"

    @property
    def weights(self) -> int:
        """Brown et al. 2020, section 2.1: 12 d² per block, besides its biases; the tables."""
        block = 12 * self.width**2 + 13 * self.width
        return self.layers * block + (self.vocabulary + self.length + 2) * self.width

    @property
    def sizes(self) -> dict[str, int]:
        """The model, in the words of its params file."""
        return self.common_sizes | {"max_position_embeddings": self.length}

    @property
    def common_sizes(self) -> dict[str, int]:
        return {
            "vocabulary": self.vocabulary,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_heads": self.heads,
            "sequence_length": self.length,
        }


class GptJ(Workload):
    """Wang and Komatsuzaki 2021: rotary positions, an untied head."""

    model = "gptj"

    @property
    def weights(self) -> int:
        """12 d² a block, its norm and the biases of its feed-forward network; two tables."""
        block = 12 * self.width**2 + 7 * self.width
        tables = (2 * self.width + 1) * self.vocabulary
        return self.layers * block + tables + 2 * self.width

    @property
    def sizes(self) -> dict[str, int]:
        return self.common_sizes | {"rotary_dim": 64}


ADAMW = {"optimizer_type": "adamw", "learning_rate": 1e-4, "weight_decay": 0.1}
SGD = {"optimizer_type": "sgd", "learning_rate": 1e-3}
WORKLOADS = {
    "GPT-2 medium": Workload(1024, 24, 16, 5.5, 3.7, 2.0),
    "GPT-3 XL": Workload(2048, 24, 16, 18.0, 12.0, 8.5),
    "GPT-J 6B": GptJ(4096, 28, 16, None, 12.0, 7.5, 1, 50400, SGD),
    "GPT-J 6B AdamW": GptJ(4096, 28, 16, None, 12.0, 8.5, 1, 50400, ADAMW, is_saved=False),
}
# A training that saves nothing: csrun has no such option, for whose training would be lost by it?
UNSAVED = """
import runpy
import sys
from os.path import dirname

from csrun.estimator import target
from csrun.runtime.chief.training.training import Training

target.checkpoint_space = lambda *known: None
Training._save_last = lambda training: None
sys.argv.pop(0)
sys.path[0] = dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Trained:
    """A run: the most memory of all its processes, the bytes they moved from and to the disk."""

    peak_gib: float
    read: int
    written: int
    seconds: float
    step_s: float


def bench_memory(name: str, stores: Collection[str]) -> None:
    """Print the most that a job takes with each of the stores, compared with its limit."""
    workload = WORKLOADS[name]
    limits = {"memory": workload.memory_gib, "disk": workload.disk_gib}
    model = f"{name}, {workload.weights / 1e6:,.0f} M weights, {workload.steps} steps"
    for store, limit in ((each, limits[each]) for each in stores if each in limits):
        if limit is None:
            continue
        with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
            rates = disk_rates(Path(folder)) if store == "disk" else None
            run = trained(Path(folder), workload, store)
        what = f"{model} of {run.step_s:.0f} s in {run.seconds:.0f} s"
        baseline = f"the limit, {limit:g} GiB"
        Result(
            "streaming", what, f"store: {store}",
            "GiB PSS", run.peak_gib, baseline, run.peak_gib / limit, 1, at_most=1.0,
        ).print()  # fmt: skip
        if rates is not None:
            _tell_disk(what, run, rates)
    if EAGER in stores and workload.memory_gib is not None:
        with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
            peak = _trained_by_pytorch(Path(folder), workload)
        for store, limit in limits.items():
            baseline = f"csrun's limit, {store}, {limit:g} GiB"
            Result(
                "streaming", model, EAGER, "GiB PSS", peak, baseline, peak / limit, 1
            ).print()  # fmt: skip


def _tell_disk(what: str, run: Trained, rates: DiskRates) -> None:
    """Print what a run has moved, and how much of it the disk would have been at work for that."""
    at_work_s = run.read / rates.read + run.written / rates.written
    baseline = f"direct: {rates.read / 1e6:,.0f} MB/s read, {rates.written / 1e6:,.0f} written"
    side = f"{run.read / 1e9:.1f} GB read, {run.written / 1e9:.1f} written"
    Result(
        "streaming", what, side, "s of the disk", at_work_s, baseline, at_work_s / run.seconds, 1
    ).print()  # fmt: skip


def bench_halves(name: str) -> None:
    """Print memory, step time and disk traffic with 16-bit weights, compared with float32."""
    workload = replace(WORKLOADS[name], is_saved=False)
    runs = {}
    for precision in ("float32", HALVES):
        with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
            runs[precision] = trained(Path(folder), replace(workload, precision=precision), "disk")
    whole, halves = runs.values()
    what = f"{name}, store on disk, {workload.steps} steps"
    rows = (
        ("GiB PSS", whole.peak_gib, halves.peak_gib),
        ("s a step", whole.step_s, halves.step_s),
        ("GB read", whole.read / 1e9, halves.read / 1e9),
        ("GB written", whole.written / 1e9, halves.written / 1e9),
    )
    for unit, of_whole, of_halves in rows:
        baseline = f"float32, {of_whole:.3g} {unit}"
        ratio = of_halves / of_whole if of_whole else 1.0
        Result(
            "streaming", what, HALVES, unit, of_halves, baseline, ratio, 1
        ).print()  # fmt: skip


def trained(folder: Path, workload: Workload, store: str, mode: str = "train") -> Trained:
    """Run the model in a job with its store in memory or on disk."""
    _prepare(folder, workload, _params(workload, store, folder))
    script = [str(MODELS / workload.model / "run.py")]
    if not workload.is_saved:
        (folder / "unsaved.py").write_text(UNSAVED)
        script.insert(0, "unsaved.py")
    run = [sys.executable, "-m", *JOB, *script, "--mode", mode, "--params", "params.yaml"]
    started = time.perf_counter()
    text, peak, read, written = _watched(run, folder, {"CSRUN_STATE_DIR": str(folder / "state")})
    sys.stderr.writelines(f"{line}\n" for line in text.splitlines() if "Weight store" in line)
    seconds = time.perf_counter() - started
    step_s = _steps_s(folder) / workload.steps if mode == "train" else 0.0
    return Trained(peak, read, written, seconds, step_s)


def _trained_by_pytorch(folder: Path, workload: Workload) -> float:
    """The most memory that the same steps take in one process of PyTorch. Units: GiB"""
    params = _params(workload, "memory", folder)
    params["model"] |= {"dropout": 0.0, "attention_dropout": 0.0}
    rate = workload.optimizer["learning_rate"]
    rates = {"initial_learning_rate": rate, "end_learning_rate": rate, "steps": workload.steps}
    params["optimizer"] |= {"learning_rate": rates, "clip_norm": 1.0}
    params["runconfig"] |= {"seed": 1, "save_checkpoints_steps": workload.steps}
    _prepare(folder, workload, params)
    run = [sys.executable, str(MODELS / workload.model / "run_torch.py"),
           "--mode", "train", "--params", "params.yaml"]  # fmt: skip
    return _watched(run, folder, {"PYTHONPATH": str(PLAIN)})[1]


def _prepare(folder: Path, workload: Workload, params: dict[str, Any]) -> None:
    """Write a text of random tokens and the params file."""
    count = 64 * workload.batch * workload.length + 1
    tokens = np.random.default_rng(1).integers(0, workload.vocabulary, count)
    tokens.astype(np.uint16).tofile(folder / "train.bin")
    (folder / "params.yaml").write_bytes(msgspec.yaml.encode(params))


def _steps_s(folder: Path) -> float:
    """What all steps of a run took together, by its ledger."""
    record = json.loads((folder / "model_dir" / "performance" / "performance.json").read_text())
    return sum(row["seconds"] for row in record["ledger"] if row["row"] in IN_STEPS)


def _params(workload: Workload, store: str, folder: Path) -> dict[str, Any]:
    data = {"file": str(folder / "train.bin"), "batch_size": workload.batch}
    options: dict[str, object] = {"weight_store": store}
    if store == "disk":
        options["weight_store_dir"] = str(folder)
        options["weight_store_memory"] = int(workload.store_gib * GIB)
    return {
        "train_input": {**data, "shuffle_seed": 1},
        "eval_input": data,
        "model": workload.sizes,
        "optimizer": {**workload.optimizer},
        "runconfig": {
            "model_dir": "model_dir",
            "max_steps": workload.steps,
            "eval_steps": workload.steps,
            "micro_batch_size": 1,
            "save_initial_checkpoint": False,
            "keep_checkpoint_max": 1,
            "log_steps": 1,
            "precision": workload.precision,
            **options,
        },
    }


def _watched(run: list[str], folder: Path, added: dict[str, str]) -> tuple[str, float, int, int]:
    """What a command has written; of it and all that descends from it, until it has ended, the most
    memory that they take together, GiB, and the bytes read from the disk and written to it."""
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            run, cwd=folder, env={**os.environ, **added}, stdout=log, stderr=log
        )
        peak, over = 0.0, threading.Event()
        read = written = 0
        threading.Thread(target=lambda: (process.wait(), over.set()), daemon=True).start()
        while not over.wait(WATCH_S):
            try:
                pids = family(process.pid)
            except psutil.NoSuchProcess:
                break
            peak = max(peak, pss_mb(pids) / 1024)
            read, written = map(max, (read, written), bytes_moved(pids))
        over.wait()
        log.seek(0)
        text = log.read()
    assert process.returncode == 0, text
    return text, peak, read, written


def bench_first_values() -> None:
    """Print how fast normal values are drawn, by NumPy alone and by two threads of csrun."""
    from csrun.executable import Initializer, InitializerKind, Parameter, StoreLayout
    from csrun.runtime.store.store_initialization import initialize

    draw = Initializer(InitializerKind.NORMAL, 0.02)
    parameters = tuple(
        Parameter(f"tensor_{n}", "layer", (DRAWN,), "float32", 0, draw) for n in range(TENSORS)
    )
    plan = SimpleNamespace(parameters=parameters, store=StoreLayout(0, 0, None, ()))
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
    names = {*WORKLOADS, *SIDES, *(workload.name for workload in FIT_BOTH)}
    if unknown := {*given} - names:
        sys.exit(f"no such workload or store: {', '.join(sorted(unknown))}")
    stores = [side for side in SIDES if side in given] or SIDES
    for name, workload in WORKLOADS.items():
        has_room = workload.memory_gib is not None and workload.memory_gib * GIB < 0.8 * available
        if name in given or (not given and has_room):
            bench_memory(name, stores)
            if HALVES in stores:
                bench_halves(name)
    for fits in FIT_BOTH:
        if fits.name in given or not given:
            bench_overlap(fits)
    if not given:
        bench_first_values()
