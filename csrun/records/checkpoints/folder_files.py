"""Files of a checkpoint: their names, and the content of the small ones."""

import os
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from csrun.base import stored
from csrun.records.tensor_files import Blocks

Array = npt.NDArray[Any]

INDEX_FILE = "checkpoint"
PREFIX = "model-ckpt-"
# Keys of an identity:
CONVERTED_FROM, UNDRAWN = "converted_from", "undrawn"
OPTIMIZER_STATE = "optimizer_state"

# Files are deleted according to the index, so it must only name checkpoints in its own folder.
Name = Annotated[str, msgspec.Meta(pattern=rf"^{PREFIX}(0|[1-9][0-9]{{0,17}})\Z")]


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of a manifest."""

    shape: tuple[int, ...]
    dtype: str
    crc32: int

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def kind(self) -> str:
        """Type and shape for display: float32[784, 50]."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """model-ckpt-<step>.json: checksum of each tensor, and identity of the run that wrote it."""

    step: int
    identity: dict[str, str]
    tensors: dict[str, TensorEntry]

    @property
    def is_converted(self) -> bool:
        """Return whether it holds converted weights, without the state of a training."""
        return CONVERTED_FROM in self.identity

    @property
    def uninitialized(self) -> tuple[str, ...]:
        """Weights of the model that are missing in a converted checkpoint and will be
        initialized.
        """
        return tuple(self.identity.get(UNDRAWN, "").split())


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`checkpoint`: names of the checkpoints that are kept, oldest first, and of the newest one."""

    latest: Name
    kept: tuple[Name, ...]


def name_of(step: int) -> str:
    """Return the name of the checkpoint at a global step, without folder and suffix."""
    return f"{PREFIX}{step}"


def step_of(name: str) -> int:
    """Return the global step of a checkpoint's name."""
    return int(name.removeprefix(PREFIX))


def name_at(path: Path) -> str:
    """Return the name of the checkpoint whose file, or name, a path is."""
    return path.name.removesuffix(".safetensors").removesuffix(".json")


def converted_identity(source: str, uninitialized: Iterable[str]) -> dict[str, str]:
    """Return the identity of a converted checkpoint, for its manifest."""
    return {CONVERTED_FROM: source, UNDRAWN: " ".join(uninitialized), OPTIMIZER_STATE: ""}


def is_name(text: str) -> bool:
    """Return whether a text is the name of a checkpoint."""
    digits = text.removeprefix(PREFIX)
    return digits != text and digits.isdecimal() and digits.isascii() and len(digits) <= 18


def tensors_path(model_dir: Path, name: str) -> Path:
    """Path of a checkpoint's tensors."""
    return model_dir / f"{name}.safetensors"


def manifest_path(model_dir: Path, name: str) -> Path:
    """Path of a checkpoint's manifest."""
    return model_dir / f"{name}.json"


def checkpoint_exists(model_dir: Path, name: str) -> bool:
    """Return whether any file of a checkpoint exists."""
    files = manifest_path(model_dir, name), tensors_path(model_dir, name)
    return any(map(os.path.lexists, files))


def read_index(model_dir: Path) -> Index | None:
    """Return the index of a model_dir; None if no checkpoint was ever written.

    Raises: CsrunError if it cannot be read, or names anything but checkpoints
    """
    path = model_dir / INDEX_FILE
    remedy = "set checkpoint_path, or remove this file to use the newest complete checkpoint"
    try:
        return stored.read(path, Index, "the index", remedy)
    except FileNotFoundError:
        return None


def kept_steps(model_dir: Path) -> tuple[int, ...]:
    """Return the steps of the checkpoints in the index, in the order of writing."""
    index = read_index(model_dir)
    return tuple(map(step_of, index.kept if index else ()))


def steps_in(model_dir: Path) -> list[int]:
    """Return the steps of all checkpoints with any file, newest first."""
    found = {path.stem for path in model_dir.glob(f"{PREFIX}*")}
    return sorted((step_of(name) for name in found if is_name(name)), reverse=True)


def has_only_begun(model_dir: Path, steps: Sequence[int]) -> bool:
    """Return whether a folder holds only a first checkpoint without a manifest."""
    return list(steps) == [0] and not os.path.lexists(manifest_path(model_dir, name_of(0)))


def has_any(model_dir: Path) -> bool:
    """Return whether a folder has checkpoints, including those that are not in the index.

    Raises: CsrunError if its index cannot be read
    """
    steps = steps_in(model_dir)
    return bool(kept_steps(model_dir) or (steps and not has_only_begun(model_dir, steps)))


def entry_of(tensor: Array | Blocks, crc32: int) -> TensorEntry:
    """Return the manifest's entry of a tensor."""
    return TensorEntry(tensor.shape, tensor.dtype.name, crc32)
