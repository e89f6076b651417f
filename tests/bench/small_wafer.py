"""A tied GPT of forty times its wafer's memory: on 64 MB, and on a CS-2 with equal shards.

Both are jobs of three nodes with the store on disk: 660 M weights with AdamW, from initialization
to a checkpoint. The checksums of all tensors must be equal. Measured are the step time of one
relative to the other, and the arena of the small wafer, sampled twice per second, relative to its
plan and its memory. It needs 25 GB of disk. A batch that does not fit is computed in micro-batches
of one sample on both, with recomputation on the small wafer.

    small_wafer.py [WIDTH LAYERS HEADS LENGTH [BATCH]]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import yaml
from processes import family
from result import Result
from streaming import ADAMW, GIB, IN_STEPS, MODELS

SITE = Path(__file__).parents[2] / "site_configs" / "local.yaml"
#: Of 16 tokens all activations fit; of more they do not.
WIDTH, LAYERS, HEADS, LENGTH, BATCH = 1280, 32, 20, 16, 1
VOCABULARY, STEPS = 50257, 2
CORES, KB_PER_CORE, SHARE = 1280, 50, 8
SRAM = CORES * KB_PER_CORE * 1024
STORE_GIB = 2
WATCH_S = 0.5


def small_site(folder: Path) -> Path:
    """The shipped site, its systems with 64 MB of memory."""
    site = yaml.safe_load(SITE.read_text())
    small = {"usable_cores": CORES, "sram_kb_per_core": KB_PER_CORE}
    site["systems"] = [{**system, **small} for system in site["systems"]]
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(site))
    return path


def params(folder: Path, sizes: list[int], **runconfig: Any) -> dict[str, Any]:
    width, layers, heads, length, batch = sizes
    data = {"file": str(folder / "train.bin"), "batch_size": batch}
    return {
        "train_input": {**data, "shuffle_seed": 1},
        "eval_input": data,
        "model": {
            "vocabulary": VOCABULARY,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_heads": heads,
            "sequence_length": length,
            "max_position_embeddings": length,
        },
        "optimizer": ADAMW,
        "runconfig": {
            "model_dir": "model_dir",
            "max_steps": STEPS,
            "micro_batch_size": 1,
            "save_initial_checkpoint": False,
            "keep_checkpoint_max": 1,
            "weight_store": "disk",
            "weight_store_dir": str(folder),
            "weight_store_memory": STORE_GIB * GIB,
            **runconfig,
        },
    }


@dataclass(frozen=True)
class Trained:
    """A run: the checkpoint's tensors with their sums, and the arena that the wafer had."""

    step_s: float
    tensors: dict[str, Any]
    plan: dict[str, Any]
    arena_bytes: int


def trained(sizes: list[int], is_small: bool) -> Trained:
    """A job of two steps, on the small wafer, or on a CS-2 with equal shards."""
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as name:
        folder = Path(name)
        samples = 64 * sizes[4]
        tokens = np.random.default_rng(1).integers(0, VOCABULARY, samples * sizes[3] + 1)
        tokens.astype(np.uint16).tofile(folder / "train.bin")
        told = {} if is_small else {"max_group_bytes": SRAM // SHARE}
        text = msgspec.yaml.encode(params(folder, sizes, **told))
        (folder / "params.yaml").write_bytes(text)
        site = ("--site", str(small_site(folder))) if is_small else ()
        command = [
            *(sys.executable, "-m", "csrun.cli.csrun_wse", *site, "--total-nodes", "3"),
            *("--tasks-per-node", "1", "--cpus-per-task", "1", "python-ws"),
            *(str(MODELS / "gpt2" / "run.py"), "--mode", "train", "--params", "params.yaml"),
        ]
        state = {"CSRUN_STATE_DIR": str(folder / "state")}
        with (folder / "log").open("w") as log:
            launcher = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **state}, stdout=log, stderr=log
            )
            arena = watched_arena(launcher)
        assert launcher.returncode == 0, (folder / "log").read_text()
        own = folder / "model_dir"
        record = json.loads((own / "performance" / "performance.json").read_text())
        seconds = sum(row["seconds"] for row in record["ledger"] if row["row"] in IN_STEPS)
        stored = (own / f"model-ckpt-{STEPS}.json").read_text()
        manifest = json.loads(stored[stored.index("{") :])
        plan = json.loads(next(own.glob("tfcs_*/plan.json")).read_text())
        assert arena <= plan["arena_bytes"], "the wafer has more than was planned"
        return Trained(seconds / STEPS, manifest["tensors"], plan, arena)


def watched_arena(launcher: "subprocess.Popen[bytes]") -> int:
    """The largest arena that a process of the job has open, until it has ended. Units: bytes"""
    largest = 0
    while launcher.poll() is None:
        time.sleep(WATCH_S)
        with suppress(psutil.NoSuchProcess, OSError):  # some of it has just ended
            paths = (path for pid in family(launcher.pid) for path in open_files(pid))
            largest = max([largest, *(path.stat().st_size for path in paths)])
    return largest


def open_files(pid: int) -> list[Path]:
    """Where a process has arenas open."""
    found = []
    with suppress(OSError):  # it, or one of its files, is gone
        for path in Path(f"/proc/{pid}/fd").iterdir():
            if "csrun-arena" in os.readlink(path):
                found.append(path)
    return found


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    sizes = [*given, *[WIDTH, LAYERS, HEADS, LENGTH, BATCH][len(given) :]]
    small, large = (trained(sizes, is_small) for is_small in (True, False))
    assert small.tensors == large.tensors, "the bits are others"
    weights = sum(group["nbytes"] for group in small.plan["groups"])
    what = f"GPT, {weights / 1e6:,.0f} MB of weights in {len(small.plan['groups'])} groups, AdamW"
    if again := len(small.plan["recomputed"]):
        what += f", {small.plan['micro_batches']} micro-batches, {again} segments computed again"
    side, baseline = f"a wafer of {SRAM / 1e6:.1f} MB", "a CS-2 with the same cuts"
    Result(
        "small_wafer", what, side, "s a step",
        small.step_s, baseline, small.step_s / large.step_s, 1,
    ).print()  # fmt: skip
    Result(
        "small_wafer", what, side, "MB of arena",
        small.arena_bytes / 1e6, "its memory", small.arena_bytes / SRAM, 1, at_most=1.0,
    ).print()  # fmt: skip
