"""DataLoaders: their order, drawn as torch draws it, and their batches by number."""

from csrun.pytorch.loader.data import check, dataset_of, input_name
from csrun.pytorch.loader.order import Orders

__all__ = ["Orders", "check", "dataset_of", "input_name"]
