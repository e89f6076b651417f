"""Loaders whose batches differ in shape, which streamers cannot put into arrays of one shape."""

from collections.abc import Callable
from typing import Any

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
            elements.taken(batch(position))
    except UnequalBatchesError as error:
        return error.what
    except Exception:  # of the data set: the step that takes the batch raises it
        return ""
    return ""
