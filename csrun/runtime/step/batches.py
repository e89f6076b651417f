"""From what the user's dataset gives to what the model was compiled for, checked row by row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.base.errors import CsrunError
from csrun.data.lazy_batch import Delivery, LazyBatch
from csrun.data.stage_clock import StageClock
from csrun.executable import PADDING_LABEL, InputSpec
from csrun.executable.bind import Array
from csrun.runtime.step.batch_names import BatchName

COPY_STAGE = "copy"  # of what a pipeline spends its time on: from its arrays to a slot's


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
    batch = delivery.batch
    if isinstance(batch, LazyBatch):
        batch = batch.arrays(clock, slot)
    with clock.timed(COPY_STAGE):
        return _copy(slot, batch, inputs, BatchName(index, inputs[0].shape[0], delivery))


def _copy(
    slot: tuple[Array, ...], batch: Sequence[Array], inputs: tuple[InputSpec, ...], name: BatchName
) -> int:
    if len(batch) != len(inputs):
        raise CsrunError(
            f"{name}: the model takes {len(inputs)} arrays, input_fn gave {len(batch)}"
        )
    rows = len(batch[0])
    for out, array, spec in zip(slot, batch, inputs, strict=True):
        _check(array, spec, rows, name)
        try:
            if not np.may_share_memory(out, array):
                np.copyto(out[:rows], array, casting="same_kind")
        except TypeError as error:
            raise CsrunError(
                f"{name.with_samples(rows)}: {spec.name} must be {spec.dtype} as the first batch "
                f"was, for which the model was compiled, got {array.dtype}: convert it in input_fn"
            ) from error
        if rows < len(out):
            out[rows:] = PADDING_LABEL if spec.classes is not None else 0
    return rows


def _check(array: Array, spec: InputSpec, rows: int, name: BatchName) -> None:
    if array.shape[1:] != spec.shape[1:] or not 0 < len(array) <= spec.shape[0]:
        raise CsrunError(
            f"{name.with_samples(rows)}: {spec.name} must have shape {_text(spec.shape)} as the "
            f"first batch had, for which the model was compiled, got {_text(array.shape)}: give "
            "batches of one shape (only the last one may have fewer rows)"
        )
    if len(array) != rows:
        raise CsrunError(f"{name}: {spec.name} has {len(array)} rows, the others {rows}")
    if spec.classes is not None:
        _check_labels(array, spec, spec.classes, name)


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
