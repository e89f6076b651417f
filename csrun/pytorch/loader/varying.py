"""Loaders whose batches differ in shape, which streamers cannot put into arrays of one shape."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader, default_collate

from csrun.data.errors import UnequalBatchesError
from csrun.pytorch.loader.data import BatchTensors

COMPARED = 4  # batches


def variation_of(loader: "DataLoader[Any]", batch: Callable[[int], Any], length: int) -> str:
    """Return how the first batches of a pass differ, or the tensors of one; empty text if they do
    not.

    batch: makes the batch at a position, of `length`; not called for a loader that stacks samples.
    """
    is_stacked = loader.collate_fn is default_collate and type(loader.batch_sampler) is BatchSampler
    if is_stacked and loader.batch_size != 1:
        return ""
    elements = BatchTensors("")
    try:
        for position in range(min(COMPARED, length)):
            made = batch(position)
            elements.taken(made)
            require_equal_rows(made)
    except UnequalBatchesError as error:
        return error.what
    except Exception:  # of the data set: the step that takes the batch raises it
        return ""
    return ""


def require_equal_rows(batch: Any) -> None:
    """Raises: UnequalBatchesError for a tensor of a batch without a row for each sample"""
    rows = [x.shape[:1] for x in tree_leaves(batch) if isinstance(x, torch.Tensor)]
    if len(set(rows)) > 1:
        said = ", ".join(str(shape[0]) if shape else "no axis" for shape in rows)
        raise UnequalBatchesError(
            "", f"the tensors of a batch have {said} rows", "add the row in the dataset"
        )
