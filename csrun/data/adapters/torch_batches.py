"""Batches of a torch DataLoader by index, which read only the samples of the requested batch.

Batch n of a loader of L batches is batch n mod L of pass n div L.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from csrun.data.errors import UnusableLoaderError

Indices = Sequence[Any]  # indices of a batch; a single index if samples are batches


@dataclass(frozen=True)
class PassOrder:
    """Sample indices of each batch of a pass. seed: of numbers drawn while batches are made."""

    seed: int
    batches: Sequence[Indices]


class LoaderBatches:
    """Endless sequence of batches, as the loader would return them.

    order_of: the order of a pass. is_alone: True for a process that only makes batches, whose
    global generators need not be restored.
    """

    def __init__(
        self, loader: Any, order_of: Callable[[int], PassOrder], is_alone: bool = False
    ) -> None:
        self._loader = loader
        self._order_of = order_of
        self._is_alone = is_alone
        self._draws = may_draw(loader)
        self._lock = threading.Lock()  # the generators of torch, NumPy and Python are global
        self._kept: dict[int, Any] = {}
        self.batches = len(loader)

    def __getitem__(self, number: int) -> Any:
        with self._lock:
            return self._kept[number] if number in self._kept else self._made(number)

    def keep(self, numbers: Iterable[int]) -> None:
        """Make these batches now and keep them until the next call, as their samples may change."""
        with self._lock:
            kept = self._kept
            self._kept = {n: kept[n] if n in kept else self._made(n) for n in numbers}

    def _made(self, number: int) -> Any:
        epoch, position = divmod(number, self.batches)
        order = self._order_of(epoch)
        if len(order.batches) != self.batches:
            raise UnusableLoaderError(
                f"DataLoader: its sampler yielded {len(order.batches)} batches in pass {epoch}, "
                "and "
                f"its length says {self.batches}: correct the sampler's __len__"
            )
        indices = order.batches[position]
        if not self._draws:
            with on_one_thread():
                found = rows_at_once(self._loader, indices)
                return fetched(self._loader, indices) if found is None else found
        with on_one_thread(), drawing(order.seed, position, restores=not self._is_alone):
            return fetched(self._loader, indices)


def fetched(loader: Any, indices: Indices) -> Any:
    """Fetch the batch of these samples.

    Source: PyTorch's torch.utils.data page, Dataset Types and Loading Batched and Non-Batched Data
    """
    dataset = loader.dataset
    if loader.batch_sampler is None:
        return loader.collate_fn(dataset[indices])
    if getattr(dataset, "__getitems__", None):
        return loader.collate_fn(dataset.__getitems__(indices))
    return loader.collate_fn([dataset[index] for index in indices])


def rows_at_once(loader: Any, indices: Indices) -> list[Any] | None:
    """Return the rows that `fetched` would stack, of a TensorDataset; None for other loaders."""
    import torch
    from torch.utils.data import TensorDataset, default_collate

    dataset = loader.dataset
    if type(dataset) is not TensorDataset or loader.collate_fn is not default_collate:
        return None
    if loader.batch_sampler is None or not all(type(index) is int for index in indices):
        return None
    tensors, rows = dataset.tensors, len(dataset)
    are_plain = all(type(x) is torch.Tensor and not x.requires_grad for x in tensors)
    if not are_plain or any(x.layout is not torch.strided for x in tensors):
        return None
    if not indices or not all(0 <= index < rows for index in indices):
        return None
    chosen = torch.tensor(indices)
    return [x.index_select(0, chosen) for x in tensors]


def may_draw(loader: Any) -> bool:
    """True if samples may depend on random numbers, as all but rows of tensors may."""
    plain = type(loader.dataset).__name__ == "TensorDataset"
    return not (plain and loader.collate_fn.__module__.startswith("torch."))


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Run torch on one thread, as in a worker process.

    A sample is too small to parallelize, and its sums would depend on the number of threads.
    """
    import torch

    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def drawing(seed: int, position: int, restores: bool) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python for a batch of a pass.

    The seed does not depend on the task that makes the batch. restores: restore them afterwards.
    """
    import torch

    key = np.random.SeedSequence([seed % 2**64, position]).generate_state(2, np.uint64)
    with generators_kept() if restores else nullcontext():
        torch.default_generator.manual_seed(int(key[0]) % 2**63)
        np.random.seed(int(key[1]) % 2**32)
        random.seed(int(key[0]))
        yield


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the state of the global generators after the block."""
    import torch

    mine = torch.default_generator
    before = mine.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        mine.set_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
