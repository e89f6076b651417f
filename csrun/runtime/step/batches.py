"""From what the user's dataset gives to what the model was compiled for, checked row by row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.base.errors import CsrunError
from csrun.data.delivery import COPY_STAGE, Delivery, Kind
from csrun.data.stage_clock import StageClock
from csrun.executable import PADDING_LABEL, InputSpec
from csrun.executable.bind import Array
from csrun.runtime.step.batch_names import BatchName


def fill(
    slot: tuple[Array, ...],
    delivery: Delivery,
    inputs: tuple[InputSpec, ...],
    index: int,
    clock: StageClock,
) -> int:
    """Put a batch into a slot's arrays, fill an incomplete one up, and return its valid rows.

    Rows that the data set only refers to are copied from where they lie into the slot.

    Shapes: slot[i] inputs[i].shape; batch[i] [rows, *inputs[i].shape[1:]], rows ≤ the batch size
    Raises: CsrunError for a batch of other arrays, another shape or kind, or labels out of range.
    """
    name = BatchName(index, inputs[0].shape[0], delivery)
    rows = _require_fitting(delivery.kinds, inputs, name)
    batch = delivery.write(tuple(array[:rows] for array in slot), clock)
    with clock.timed(COPY_STAGE):
        for out, array, spec in zip(slot, batch, inputs, strict=True):
            if spec.classes is not None:
                _check_labels(array, spec, spec.classes, name)
            if rows < len(out):
                out[rows:] = PADDING_LABEL if spec.classes is not None else 0
    return rows


def _require_fitting(kinds: Sequence[Kind], inputs: tuple[InputSpec, ...], name: BatchName) -> int:
    """See that a batch is what the model was compiled for, before it is read: its rows."""
    if len(kinds) != len(inputs):
        raise CsrunError(
            f"{name}: the model takes {len(inputs)} arrays, input_fn gave {len(kinds)}"
        )
    rows = kinds[0].shape[0] if kinds[0].shape else 0
    for kind, spec in zip(kinds, inputs, strict=True):
        if kind.shape[1:] != spec.shape[1:] or not 0 < sum(kind.shape[:1]) <= spec.shape[0]:
            raise CsrunError(
                f"{name.with_samples(rows)}: {spec.name} must have shape {_text(spec.shape)} as "
                f"the first batch had, for which the model was compiled, got {_text(kind.shape)}: "
                "give batches of one shape (only the last one may have fewer rows)"
            )
        if kind.shape[0] != rows:
            raise CsrunError(f"{name}: {spec.name} has {kind.shape[0]} rows, the others {rows}")
        if not np.can_cast(kind.dtype, spec.dtype, "same_kind"):
            raise CsrunError(
                f"{name.with_samples(rows)}: {spec.name} must be {spec.dtype} as the first batch "
                f"was, for which the model was compiled, got {kind.dtype}: convert it in input_fn"
            )
    return rows


def _check_labels(labels: npt.NDArray[Any], spec: InputSpec, classes: int, name: BatchName) -> None:
    if labels.min() >= 0 and labels.max() < classes:
        return
    at = np.argwhere((labels < 0) | (labels >= classes))[0]
    raise CsrunError(
        f"{name.row(int(at[0]), len(labels))}: {spec.name} must be in 0..{classes - 1}, "
        f"got {labels[tuple(at)]}"
    )


def _text(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
