"""The batches of a torch DataLoader by their numbers: only who wants one reads its samples.

Batch n of a loader of L batches is number n mod L of pass n div L: passes lie one behind the other.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from csrun.data.errors import UnusableLoaderError

Indices = Sequence[Any]  # of a batch: lists of them, or one where the samples are batches


@dataclass(frozen=True)
class PassOrder:
    """One pass: what each of its batches is made of. seed: of what is drawn while they are made."""

    seed: int
    batches: Sequence[Indices]


class LoaderBatches:
    """A sequence without end: the item of a number is that batch, as the loader would give it.

    order_of: the order of the pass of a number. is_alone: whether the process makes batches and
    nothing else, so that its global random numbers may be anything.
    """

    def __init__(
        self, loader: Any, order_of: Callable[[int], PassOrder], is_alone: bool = False
    ) -> None:
        self._loader = loader
        self._order_of = order_of
        self._is_alone = is_alone
        self._draws = may_draw(loader)
        self._lock = threading.Lock()  # torch's, NumPy's and Python's numbers are the process's
        self._kept: dict[int, Any] = {}
        self.batches = len(loader)

    def __getitem__(self, number: int) -> Any:
        with self._lock:
            return self._kept[number] if number in self._kept else self._made(number)

    def keep(self, numbers: Iterable[int]) -> None:
        """Make these batches now, and keep them until others are: their samples may change."""
        with self._lock:
            kept = self._kept
            self._kept = {n: kept[n] if n in kept else self._made(n) for n in numbers}

    def _made(self, number: int) -> Any:
        epoch, position = divmod(number, self.batches)
        order = self._order_of(epoch)
        if len(order.batches) != self.batches:
            raise UnusableLoaderError(
                f"DataLoader: its sampler gave {len(order.batches)} batches in pass {epoch}, and "
                f"its length says {self.batches}: correct the sampler's __len__"
            )
        indices = order.batches[position]
        if not self._draws:
            with on_one_thread():
                return fetched(self._loader, indices)
        with on_one_thread(), drawing(order.seed, position, restores=not self._is_alone):
            return fetched(self._loader, indices)


def fetched(loader: Any, indices: Indices) -> Any:
    """The batch of these samples.

    Source: PyTorch's torch.utils.data page, Dataset Types and Loading Batched and Non-Batched Data
    """
    dataset = loader.dataset
    if loader.batch_sampler is None:
        return loader.collate_fn(dataset[indices])
    if getattr(dataset, "__getitems__", None):
        return loader.collate_fn(dataset.__getitems__(indices))
    return loader.collate_fn([dataset[index] for index in indices])


def may_draw(loader: Any) -> bool:
    """Whether the samples of a loader may depend on random numbers: rows of tensors do not."""
    plain = type(loader.dataset).__name__ == "TensorDataset"
    return not (plain and loader.collate_fn.__module__.startswith("torch."))


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Have torch compute on this thread alone, as in a worker process of its own.

    A sample is too small to be shared, and its sums would depend on the number of threads.
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
    """Have the global random numbers of torch, NumPy and Python be those of a batch of a pass.

    They are the same whoever makes the batch. restores: go on with the former ones afterwards.
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
    """Have the global random numbers go on afterwards where they were."""
    import torch

    mine = torch.default_generator
    before = mine.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        mine.set_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
