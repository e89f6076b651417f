"""Helpers that model functions and scripts of the Model Zoo call."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.context import current
from csrun.records import checkpoints

#: Contexts that control summaries; the scalars of a loss are always kept.
cs1_enable_summaries = nullcontext
cs1_disable_summaries = nullcontext


def summary_layer(x: Any) -> Any:
    """Return a tensor unchanged."""
    return x


def boundary_cast(x: Any, name: str | None = None, back_cast: bool = True) -> Any:
    """Return a tensor unchanged: all floats are float32."""
    return x


def summarize_tensor(
    x: Any, is_gradient_tensor: bool = False, op_name_if_grad: str | None = None
) -> None:
    """Ignore a tensor summary."""


def GetWeights(path: str | Path) -> Iterator[tuple[str, npt.NDArray[Any]]]:  # noqa: N802
    """Yield the tensors of a checkpoint by name, and its global_step."""
    found = checkpoints.open_checkpoint(Path(path))
    yield "global_step", np.asarray(found.step)
    specs = found.manifest.tensors
    values = {name: np.empty(spec.shape, spec.dtype) for name, spec in specs.items()}
    found.take(values)
    yield from values.items()


class CSSlurmClusterResolver:
    """Position of a task in its job: task_type is chief or worker, task_id its number.

    Arguments of the original have no effect, since csrun's launcher starts all tasks.
    """

    def __init__(self, *unused: Any, **options: Any) -> None:
        context = current()
        self.task_id = context.rank if context else 0
        self.task_type = "worker" if self.task_id else "chief"
