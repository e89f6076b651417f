"""Conversion of models saved by Hugging Face's transformers to and from csrun's tensors."""

from csrun.records.huggingface.names import SourceTensors, joined, named, same, transposed
from csrun.records.huggingface.saved_model import Folder, open_folder, size_in_bytes, write_folder
from csrun.records.huggingface.tensor_conversion import (
    ConvertedTensors,
    tensors_from_huggingface,
    tensors_to_huggingface,
)

__all__ = [
    "ConvertedTensors",
    "Folder",
    "SourceTensors",
    "joined",
    "named",
    "open_folder",
    "same",
    "size_in_bytes",
    "tensors_from_huggingface",
    "tensors_to_huggingface",
    "transposed",
    "write_folder",
]
