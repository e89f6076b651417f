"""Replacement of `torch_xla.utils.utils`, which scripts import for a generator of fake batches.

Only installed if torch_xla is missing.
"""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch.utils.data import DataLoader, Dataset


class _Repeated(Dataset[Any]):
    """One batch, repeated."""

    def __init__(self, batch: Any, count: int) -> None:
        self._batch, self._count = batch, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._batch


def _same(batch: Any) -> Any:
    return batch


class SampleGenerator(DataLoader[Any]):
    """Loader of one batch, sample_count times."""

    def __init__(self, data: Any, sample_count: int) -> None:
        super().__init__(_Repeated(data, sample_count), batch_size=None, collate_fn=_same)


def install() -> None:
    """Make `torch_xla.utils.utils` importable if torch_xla is not installed."""
    if "torch_xla" in sys.modules or find_spec("torch_xla") is not None:
        return
    parent: ModuleType | None = None
    for name in ("torch_xla", "torch_xla.utils", "torch_xla.utils.utils"):
        made = ModuleType(name, "Stand-in of csrun.")
        made.__spec__ = ModuleSpec(name, None, is_package=True)
        made.__path__ = []
        sys.modules[name] = made
        if parent is not None:
            setattr(parent, name.rpartition(".")[2], made)
        parent = made
    sys.modules["torch_xla.utils.utils"].SampleGenerator = SampleGenerator  # type: ignore[attr-defined]
