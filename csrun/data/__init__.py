"""Input pipelines: lazy chains of operations, from which a task reads the batches it streams."""

from csrun.data import formats
from csrun.data.dataset import AUTOTUNE, Dataset
from csrun.data.errors import DataError
from csrun.data.formats import idx
from csrun.data.input_fn_result import as_dataset
from csrun.data.samples import Batch
from csrun.data.sharding import Sharding, shard_info
from csrun.data.spec import ArraySpec

__all__ = [
    "AUTOTUNE",
    "ArraySpec",
    "Batch",
    "DataError",
    "Dataset",
    "Sharding",
    "as_dataset",
    "formats",
    "idx",
    "shard_info",
]
