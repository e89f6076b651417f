"""Input pipelines: data sets that any task can read from any batch on."""

from csrun.data import idx
from csrun.data.dataset import ArraySpec, Dataset, as_dataset
from csrun.data.errors import DataError
from csrun.data.indexed import Batch

__all__ = ["ArraySpec", "Batch", "DataError", "Dataset", "as_dataset", "idx"]
