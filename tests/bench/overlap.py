"""Streaming compared with pipelined runs of models that fit both, and exposed transfer time.

Every run is a job as a user starts it, and its ledger tells where the time went. Steps per second
are those of the steps themselves: no checkpoint, no start. Exposed is what the steps waited for
groups of weights; the wait for the group that a step begins with, whose update is the last, stands
apart.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from result import Result, interleaved

MODELS = Path(__file__).parents[2] / "reference_models"
ROUNDS = 3
COMMANDS = {
    "pipelined": ("--total-nodes", "2", "--tasks-per-node", "1", "python"),
    "streaming": ("--total-nodes", "3", "--tasks-per-node", "1", "python-ws"),
}
IN_STEPS = ("compute", "input", "weights", "first_group", "chief")


@dataclass(frozen=True)
class Fits:
    """A model that fits both ways, and how many steps of it are taken.

    sizes: what differs from the model's own params file. exposed: the most that may be exposed.
    """

    name: str
    model: str
    steps: int
    sizes: dict[str, Any] = field(default_factory=dict)
    precision: str = "float32"
    exposed: float | None = None


def _gpt(vocabulary: int, width: int, layers: int, heads: int, batch: int) -> dict[str, Any]:
    return {
        "model": {
            "vocabulary": vocabulary,
            "max_position_embeddings": 256,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_heads": heads,
            "sequence_length": 256,
        },
        "train_input": {"file": "train.bin", "batch_size": batch},
        "optimizer": {"learning_rate": 1e-4, "clip_norm": None},
    }


FIT_BOTH = (
    Fits("fc_mnist 10 x 50", "fc_mnist", 3000),
    Fits("fc_mnist 500-300", "fc_mnist", 1500, {"model": {"hidden_sizes": [500, 300]}}),
    Fits("GPT, d 384, 6 layers, batch 4, bytes", "gpt2", 12, _gpt(256, 384, 6, 6, 4), exposed=0.1),
    Fits(
        "GPT-2's width, d 768, 4 layers, batch 2",
        "gpt2",
        6,
        _gpt(50257, 768, 4, 12, 2),
        exposed=0.1,
    ),
)


def bench_overlap(workload: Fits) -> None:
    """Print steps per second of both ways, and the shares of the steps that waited for weights."""
    exposed: list[tuple[float, float]] = []
    sides: dict[str, Callable[[], float]] = {
        name: partial(_steps_per_second, workload, command, exposed)
        for name, command in COMMANDS.items()
    }
    medians = interleaved(sides, ROUNDS)
    streaming, pipelined = medians["streaming"], medians["pipelined"]
    Result(
        "streaming", workload.name, "streaming", "steps/s", streaming, "pipelined",
        streaming / pipelined, ROUNDS, at_least=0.9,
    ).print()  # fmt: skip
    streamed = [waits for waits in exposed if any(waits)]
    of_others, of_first = (statistics.median(waits) for waits in zip(*streamed, strict=True))
    for side, share, most in (
        ("waits for weights", of_others, workload.exposed),
        ("waits for the first group's update", of_first, None),
    ):
        Result(
            "streaming", workload.name, side, "of the step", share, "the step", share, ROUNDS,
            at_most=most,
        ).print()  # fmt: skip


def _steps_per_second(
    workload: Fits, command: tuple[str, ...], exposed: list[tuple[float, float]]
) -> float:
    """Of one run; what it waited for weights, as shares of its steps, is added to `exposed`."""
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        write_params(Path(folder), workload)
        run = MODELS / workload.model / "run.py"
        subprocess.run(
            [sys.executable, "-m", "csrun.cli.csrun_wse", *command, str(run),
             "--mode", "train", "--params", "params.yaml"],
            cwd=folder,
            env={**os.environ, "CSRUN_STATE_DIR": f"{folder}/state"},
            check=True,
            capture_output=True,
        )  # fmt: skip
        text = Path(folder, "model_dir", "performance", "performance.json").read_text()
    seconds = {row["row"]: row["seconds"] for row in json.loads(text)["ledger"]}
    of_steps = sum(seconds[row] for row in IN_STEPS)
    exposed.append((seconds["weights"] / of_steps, seconds["first_group"] / of_steps))
    return workload.steps / of_steps


def write_params(folder: Path, workload: Fits) -> None:
    """The model's own params with the workload's sizes, and tokens where it reads some."""
    path = MODELS / workload.model / "configs" / "params.yaml"
    params = msgspec.yaml.decode(path.read_bytes())
    changes = {**workload.sizes, "runconfig": _runconfig(workload)}
    for section, values in changes.items():
        params[section] = {**params[section], **values}
    if vocabulary := params["model"].get("vocabulary"):
        tokens = np.random.default_rng(1).integers(0, vocabulary, 64 * 256 + 1)
        tokens.astype(np.uint16).tofile(folder / "train.bin")
    (folder / "params.yaml").write_bytes(msgspec.yaml.encode(params))


def _runconfig(workload: Fits) -> dict[str, Any]:
    return {
        "model_dir": "model_dir",
        "precision": workload.precision,
        "max_steps": workload.steps,
        "save_initial_checkpoint": False,
        "save_checkpoints_steps": workload.steps,
        "log_steps": workload.steps,
    }
