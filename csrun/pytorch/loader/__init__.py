"""DataLoaders: sample order as torch draws it, and batches by their number."""

from csrun.pytorch.loader.changes import DataChanges
from csrun.pytorch.loader.custom_loaders import iterate_custom_loader
from csrun.pytorch.loader.data import (
    BatchTensors,
    batches_by_number,
    check,
    dataset_of,
    input_name,
)
from csrun.pytorch.loader.iterated import UNKNOWN, WINDOW, length_of
from csrun.pytorch.loader.order import PassOrders
from csrun.pytorch.loader.varying import variation_of

__all__ = [
    "UNKNOWN",
    "WINDOW",
    "BatchTensors",
    "DataChanges",
    "PassOrders",
    "batches_by_number",
    "check",
    "dataset_of",
    "input_name",
    "iterate_custom_loader",
    "length_of",
    "variation_of",
]
