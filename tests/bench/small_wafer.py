"""A tied GPT of forty times its wafer's memory: on 64 MB, and on a CS-2 that is told to cut alike.

Both are jobs of three nodes with the store on disk: 660 M weights by AdamW, from their first values
to a checkpoint. Their checkpoints must have the same sums, tensor by tensor. The step beside the
other's, and the memory that the plan of the small wafer takes of it. It needs 25 GB of disk.

    small_wafer.py [WIDTH LAYERS HEADS LENGTH]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml
from result import Result
from streaming import ADAMW, GIB, IN_STEPS, MODELS

SITE = Path(__file__).parents[2] / "site_configs" / "local.yaml"
WIDTH, LAYERS, HEADS, LENGTH = 1280, 32, 20, 16  # activations of 16 tokens fit; of more they do not
VOCABULARY, STEPS = 50257, 2
CORES, KB_PER_CORE, SHARE = 1280, 50, 8
SRAM = CORES * KB_PER_CORE * 1024
STORE_GIB = 2


def small_site(folder: Path) -> Path:
    """The shipped site, its systems with 64 MB of memory."""
    site = yaml.safe_load(SITE.read_text())
    small = {"usable_cores": CORES, "sram_kb_per_core": KB_PER_CORE}
    site["systems"] = [{**system, **small} for system in site["systems"]]
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(site))
    return path


def params(folder: Path, sizes: list[int], **runconfig: Any) -> dict[str, Any]:
    width, layers, heads, length = sizes
    data = {"file": str(folder / "train.bin"), "batch_size": 1}
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
            "save_initial_checkpoint": False,
            "keep_checkpoint_max": 1,
            "weight_store": "disk",
            "weight_store_dir": str(folder),
            "weight_store_memory": STORE_GIB * GIB,
            **runconfig,
        },
    }


def trained(sizes: list[int], is_small: bool) -> tuple[float, dict[str, Any], dict[str, Any]]:
    """Seconds a step, the manifest of the checkpoint, and the plan."""
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as name:
        folder = Path(name)
        tokens = np.random.default_rng(1).integers(0, VOCABULARY, 64 * sizes[3] + 1)
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
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **state}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        own = folder / "model_dir"
        record = json.loads((own / "performance" / "performance.json").read_text())
        seconds = sum(row["seconds"] for row in record["ledger"] if row["row"] in IN_STEPS)
        stored = (own / f"model-ckpt-{STEPS}.json").read_text()
        manifest = json.loads(stored[stored.index("{") :])
        plan = json.loads(next(own.glob("tfcs_*/plan.json")).read_text())
        return seconds / STEPS, manifest, plan


if __name__ == "__main__":
    sizes = [int(text) for text in sys.argv[1:]] or [WIDTH, LAYERS, HEADS, LENGTH]
    small_s, manifest, plan = trained(sizes, is_small=True)
    large_s, expected, _ = trained(sizes, is_small=False)
    assert manifest["tensors"] == expected["tensors"], "the bits are others"
    weights = sum(group["nbytes"] for group in plan["groups"])
    what = f"GPT, {weights / 1e6:,.0f} MB of weights in {len(plan['groups'])} groups, AdamW, disk"
    side, baseline = f"a wafer of {SRAM / 1e6:.1f} MB", "a CS-2 that cuts alike"
    Result("small_wafer", what, side, "s a step", small_s, baseline, small_s / large_s, 1).print()
    Result(
        "small_wafer", what, side, "MB planned", plan["arena_bytes"] / 1e6, "what it has",
        plan["arena_bytes"] / SRAM, 1, at_most=1.0,
    ).print()  # fmt: skip
