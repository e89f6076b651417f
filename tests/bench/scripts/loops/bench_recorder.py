"""Losses, final weights and time of a script under test: `record` each loss, then `finish`.

The result goes to the folder that CSRUN_BENCH_RESULT names. Two losses are read in the loop, at
FIRST_TIMED and in the last step, and the time between these is measured, so that steps sent ahead
are in it, and recording and compiling the first steps are not.
"""

import json
import os
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

STEPS = int(os.environ.get("CSRUN_BENCH_STEPS", "20"))
FIRST_TIMED = min(8, STEPS // 2)

_losses: list[Any] = []
_times_s: dict[int, float] = {}


def record(loss: torch.Tensor) -> None:
    """Keep the loss of a step, after its backward pass."""
    _losses.append(loss.detach())
    if len(_losses) in (FIRST_TIMED, STEPS):
        float(_losses[-1])
        _times_s[len(_losses)] = perf_counter()


def finish(*models: torch.nn.Module) -> None:
    """Write losses, steps per second and the models' weights."""
    folder = Path(os.environ["CSRUN_BENCH_RESULT"])
    weights = {
        f"{index}.{name}": value.detach().cpu().clone()
        for index, model in enumerate(models)
        for name, value in model.state_dict().items()
    }
    torch.save(weights, folder / "weights.pt")
    rate = None
    if STEPS in _times_s:
        rate = (STEPS - FIRST_TIMED) / (_times_s[STEPS] - _times_s[FIRST_TIMED])
    found = {"losses": [float(loss) for loss in _losses], "steps_per_s": rate}
    (folder / "result.json").write_text(json.dumps(found))
