"""Weights that come from a disk in each step, in 16 bits compared with float32: traffic and time.

A GPT of few tokens, so that the disk takes more time than products, in a job whose store may keep
little in memory. A step's numbers are those of a long run less those of a short one: first values,
start and end are left out.
"""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from result import Result
from streaming import SGD, Workload, trained

MIXED = ("mixed_float16", "mixed_bfloat16", "mixed_cbfloat16")
GPT = Workload(1024, 12, 16, None, 1.0, 0.23, vocabulary=256, length=16, is_saved=False)
NAME = f"GPT, {GPT.weights / 1e6:.0f} M weights, {GPT.length} tokens"
FROM_DISK: dict[str, tuple[str, dict[str, Any]]] = {
    "evaluation": ("eval", {"store_gib": 0.09}),
    "SGD": ("train", {"optimizer": SGD}),
    "AdamW": ("train", {}),
}
UNITS = ("s a step", "MB read", "MB written")
SHORT, LONG = 2, 10  # steps
FASTER = 1.3  # promised where the disk is only read
MOST_BYTES = 1.05  # of float32 in a training; docs/precision.md has the limit


def bench_disk() -> None:
    """Print what a step moves from and to the disk, and its time, in each precision."""
    for what, (mode, options) in FROM_DISK.items():
        steps = {}
        for precision in ("float32", *MIXED):
            workload = replace(GPT, precision=precision, **options)
            steps[precision] = _one_step(workload, mode)
        whole = steps["float32"]
        for precision in MIXED:
            for unit, value, beside in zip(UNITS, steps[precision], whole, strict=True):
                is_timed, is_eval = unit == UNITS[0], mode == "eval"
                limits = {(True, True): 1 / FASTER, (False, False): MOST_BYTES}
                Result(
                    "from_disk", f"{NAME}, {what}", precision, unit, value,
                    f"float32, {beside:.3g} {unit}", value / beside if beside else 1.0, 1,
                    at_most=limits.get((is_timed, is_eval)),
                ).print()  # fmt: skip


def _one_step(workload: Workload, mode: str) -> tuple[float, float, float]:
    """Time, bytes read and bytes written of a step: a long run's less a short one's.

    Units: s, MB
    """
    runs, is_evaluated = [], mode == "eval"
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        if is_evaluated:
            first = replace(workload, steps=1, precision="float32", is_saved=True)
            trained(Path(folder), first, "memory")
        for steps in (SHORT, LONG):
            run = replace(workload, steps=steps, is_saved=is_evaluated)
            runs.append(trained(Path(folder), run, "disk", mode))
            if not is_evaluated:
                shutil.rmtree(Path(folder, "model_dir"))
    short, long = runs
    count = LONG - SHORT
    return (
        (long.seconds - short.seconds) / count,
        (long.read - short.read) / count / 1e6,
        (long.written - short.written) / count / 1e6,
    )


if __name__ == "__main__":
    bench_disk()
