"""Checkpoints: safetensors files, written atomically, with a manifest and an index.

A checkpoint `model-ckpt-<step>` is valid once it is in the index. Tensors, manifest and index are
written in this order, each flushed before the next begins, so that after a kill at any moment the
newest checkpoint in the index is complete.
"""

from csrun.records.checkpoints.comparing import Comparison, compare
from csrun.records.checkpoints.folder_files import (
    OPTIMIZER_STATE,
    Index,
    Manifest,
    TensorEntry,
    checkpoint_exists,
    converted_identity,
    has_any,
    kept_steps,
    name_at,
    name_of,
)
from csrun.records.checkpoints.listing import (
    Listed,
    VerifiedCheckpoint,
    index_problem,
    listing,
    verify,
)
from csrun.records.checkpoints.read import Checkpoint, latest, newest_intact, open_checkpoint
from csrun.records.checkpoints.write import Writer, copy, write

__all__ = [
    "OPTIMIZER_STATE",
    "Checkpoint",
    "Comparison",
    "Index",
    "Listed",
    "Manifest",
    "TensorEntry",
    "VerifiedCheckpoint",
    "Writer",
    "checkpoint_exists",
    "compare",
    "converted_identity",
    "copy",
    "has_any",
    "index_problem",
    "kept_steps",
    "latest",
    "listing",
    "name_at",
    "name_of",
    "newest_intact",
    "open_checkpoint",
    "verify",
    "write",
]
