"""Losses, final weights and time of a script under test: `record` each loss, then `finish`.

The result goes to the folder that CSRUN_BENCH_RESULT names. The losses of the TIMED steps are read
in the next step, as by a script that logs them after `optimizer.step()`. The rate is the median of
those between two of them, so that steps sent ahead are in it, and recording and compiling the first
steps, or an evaluation, are not.
"""

import json
import os
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

STEPS = int(os.environ.get("CSRUN_BENCH_STEPS", "20"))
EVERY = 3
TIMED = range(STEPS - 1, max(STEPS // 2 - EVERY - 1, 1), -EVERY)

# Before the script makes its model and data.
torch.set_default_dtype(getattr(torch, os.environ.get("CSRUN_BENCH_DTYPE", "float32")))

if torch.get_default_dtype() is torch.float64:
    torch.Tensor.float = torch.Tensor.double  # scripts write `.float()` of labels and outputs
torch.manual_seed(0)  # of scripts that set none: PyTorch's own differs from process to process

_losses: list[Any] = []
_times_s: list[float] = []


def record(loss: torch.Tensor) -> None:
    """Keep the loss of a step, after its backward pass."""
    if len(_losses) in TIMED:
        float(_losses[-1])
        _times_s.append(perf_counter())
    _losses.append(loss.detach())


def finish(*models: torch.nn.Module) -> None:
    """Write losses, steps per second and the models' weights."""
    folder = Path(os.environ["CSRUN_BENCH_RESULT"])
    weights = {
        f"{index}.{name}": value.detach().cpu().clone()
        for index, model in enumerate(models)
        for name, value in model.state_dict().items()
    }
    torch.save(weights, folder / "weights.pt")
    taken_s = [after - before for before, after in pairwise(_times_s)]
    rate = EVERY / median(taken_s) if taken_s else None
    found = {"losses": [float(loss) for loss in _losses], "steps_per_s": rate}
    (folder / "result.json").write_text(json.dumps(found))


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """The same model, whose dropouts and recurrent layers drop nothing."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model
