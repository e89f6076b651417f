"""Steps per second around a checkpoint of 500 MB, compared with the other steps of the run.

A GPT trains by AdamW in a job, a checkpoint every twenty steps. Of each twenty the ten around the
checkpoint, from two steps before it on, are one side, the ten that follow them the other.

    checkpoints.py [streaming|tcp|pipelined...]

tcp is streaming whose nodes act as machines of their own, over loopback.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' own support

import msgspec
import numpy as np
from result import Result
from support.sites import separate_site

RUN = Path(__file__).parents[2] / "reference_models" / "gpt2" / "run.py"
LENGTH, VOCABULARY, WIDTH, LAYERS = 256, 32768, 512, 8
EVERY, BEFORE, AROUND, CHECKPOINTS = 20, 2, 10, 4
STEPS = EVERY * (CHECKPOINTS + 1)
STREAMING = ("--total-nodes", "3", "python-ws")
LAYOUTS = {
    "streaming": STREAMING,
    "tcp": ("--site", "separate.yaml", *STREAMING),
    "pipelined": ("--total-nodes", "1", "python"),
}
AT_LEAST = 1 / 1.15  # a checkpoint slows the ten steps around it by less than 15 %


def bench(mode: str) -> None:
    """Print both sides of a run."""
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        ends_s, nbytes = _trained(Path(folder), LAYOUTS[mode])
    around, without = [], []
    for checkpoint in range(EVERY, STEPS, EVERY):
        first = checkpoint - BEFORE
        around.append(AROUND / (ends_s[first + AROUND] - ends_s[first]))
        without.append(AROUND / (ends_s[first + 2 * AROUND] - ends_s[first + AROUND]))
    baseline = "the ten steps after them"
    steady = statistics.median(without)
    what = f"GPT, AdamW, {mode}: a checkpoint of {nbytes / 1e6:.0f} MB"
    sides = {
        baseline: (steady, None),
        "the ten steps around it": (statistics.median(around), AT_LEAST),
    }
    for side, (value, at_least) in sides.items():
        Result(
            "checkpoints", what, side, "steps/s", value, baseline, value / steady,
            CHECKPOINTS, at_least=at_least,
        ).print()  # fmt: skip


def _trained(folder: Path, layout: tuple[str, ...]) -> tuple[dict[int, float], int]:
    """When each step was over, and the bytes of a checkpoint."""
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 64 * LENGTH + 1)
    tokens.astype(np.uint16).tofile(folder / "train.bin")
    (folder / "params.yaml").write_bytes(msgspec.yaml.encode(_params(folder)))
    separate_site(folder)
    command = [sys.executable, "-m", "csrun.cli.csrun_wse", "--tasks-per-node", "1",
               "--cpus-per-task", "1", *layout, str(RUN), "--mode", "train",
               "--params", "params.yaml"]  # fmt: skip
    environment = {**os.environ, "CSRUN_STATE_DIR": str(folder / "state")}
    ends_s: dict[int, float] = {}
    said = []
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            said.append(line)
            if found := re.search(r"global_step = (\d+),", line):
                ends_s[int(found[1])] = perf_counter()
    assert launcher.returncode == 0, "".join(said)
    return ends_s, (folder / "model_dir" / f"model-ckpt-{STEPS}.safetensors").stat().st_size


def _params(folder: Path) -> dict[str, object]:
    data = {"file": str(folder / "train.bin"), "batch_size": 1}
    return {
        "train_input": {**data, "shuffle_seed": 1},
        "eval_input": data,
        "model": {
            "vocabulary": VOCABULARY,
            "max_position_embeddings": LENGTH,
            "hidden_size": WIDTH,
            "num_hidden_layers": LAYERS,
            "num_heads": 8,
            "sequence_length": LENGTH,
        },
        "optimizer": {"optimizer_type": "adamw", "learning_rate": 1e-4, "weight_decay": 0.1},
        "runconfig": {
            "model_dir": "model_dir",
            "max_steps": STEPS,
            "save_checkpoints_steps": EVERY,
            "save_initial_checkpoint": False,
            "keep_checkpoint_max": 1,
            "log_steps": 1,
        },
    }


if __name__ == "__main__":
    for mode in sys.argv[1:] or LAYOUTS:
        bench(mode)
