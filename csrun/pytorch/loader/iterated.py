"""Batches of a DataLoader over an IterableDataset: a pass is iterated from its beginning.

Each task that makes batches iterates the whole pass and returns the requested ones. The first pass
begins with the chief's random state, so that a data set that draws its order has the same one in
all tasks; later passes begin with a seed. With `num_workers`, a pass is that of PyTorch's first
worker, as if it were the only one.
"""

import copy
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils import worker

from csrun.data.adapters.torch_batches import PassOrder, generators_kept, on_one_thread
from csrun.data.errors import PassEndedError, UnusableLoaderError

UNKNOWN = 1 << 32  # number of batches of a pass whose length is unknown
WINDOW = 64  # batches kept: prefetched ones, which may be requested again
_END = object()


def is_iterated(loader: Any) -> bool:
    """True for a loader whose data set has no samples by index."""
    return isinstance(loader.dataset, IterableDataset)


def length_of(loader: "DataLoader[Any]") -> int:
    """Return the number of batches in a pass; UNKNOWN for an iterable without a length.

    The length of an iterable that makes batches itself may be that of its samples: PyTorch ends
    the pass where the iterable ends.
    """
    if is_iterated(loader) and loader.batch_size is None:
        return UNKNOWN
    try:
        return len(loader)
    except TypeError:
        if is_iterated(loader):
            return UNKNOWN
        raise


def rows_of(loader: "DataLoader[Any]", position: int) -> int | None:
    """Return the number of samples in a batch; None if unknown, as for ready batches."""
    size: int | None = loader.batch_size
    if size is None or length_of(loader) == UNKNOWN:
        return None
    return min(size, len(loader.dataset) - position * size)


def seeded_states(seed: int) -> list[Any]:
    """Return the states of the generators after seeding them."""
    with generators_kept():
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        return generator_states()


def worker_states(seed: int) -> list[Any]:
    """Return the generator states of PyTorch's first worker process; seed: of the pass."""
    with generators_kept():
        random.seed(seed)
        np.random.seed(worker._generate_state(seed, 0))
        torch.default_generator.manual_seed(seed)
        return generator_states()


def generator_states() -> list[Any]:
    """Return the states of Python's, NumPy's and PyTorch's generators, for msgpack."""
    kind, key, *rest = np.random.get_state(legacy=True)
    states = torch.default_generator.get_state().numpy().tobytes()
    return [random.getstate(), [kind, np.asarray(key).tolist(), *rest], states]


def _restore(states: Any) -> None:
    version, key, gauss = states[0]
    random.setstate((version, tuple(key), gauss))
    np.random.set_state(tuple(states[1]))
    state = torch.frombuffer(bytearray(states[2]), dtype=torch.uint8)
    torch.default_generator.set_state(state)


class IteratedBatches:
    """Endless sequence of batches, pass after pass.

    order_of: returns the order of a pass, whose `batches` are its initial generator states.
    convert: applied to each batch.
    """

    def __init__(
        self,
        loader: "DataLoader[Any]",
        order_of: Callable[[int], PassOrder],
        convert: Callable[[Any], Any],
    ) -> None:
        self._loader, self._order_of, self._convert = loader, order_of, convert
        self._lock = threading.Lock()  # the generators are global
        self._kept: dict[int, Any] = {}
        self._window: dict[int, Any] = {}
        self._pass: Iterator[Any] | None = None
        self._states: Any = None  # generator states, between two batches
        self._number = self._next = 0  # the pass, and its next batch
        self.batches = length_of(loader)

    def __getitem__(self, number: int) -> Any:
        with self._lock:
            return self._find(number)

    def keep(self, numbers: Iterable[int]) -> None:
        """Make these batches now and keep them until the next call."""
        with self._lock:
            self._kept = {number: self._find(number) for number in sorted(numbers)}

    def _find(self, number: int) -> Any:
        for known in (self._kept, self._window):
            if number in known:
                return known[number]
        is_ahead = self._pass is not None and self._next <= number
        if not is_ahead or number // self.batches != (self._next - 1) // self.batches:
            self._begin(number // self.batches)
        while self._next <= number:
            self._walk()
        return self._window[number]

    def _begin(self, number: int) -> None:
        """Begin a pass."""
        loader = copy.copy(self._loader)
        alone = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}
        loader.__dict__.update(alone, _iterator=None)
        if self._loader.num_workers:  # a worker does not draw the pass's seed
            loader.generator = torch.Generator()
        self._number, self._states = number, self._order_of(number).batches
        with self._drawing():
            if self._loader.num_workers and loader.worker_init_fn is not None:
                loader.worker_init_fn(0)
            self._pass = iter(loader)
        self._next = number * self.batches

    def _walk(self) -> None:
        """Make the next batch of the pass."""
        assert self._pass is not None, "begun"
        with self._drawing(), on_one_thread():
            batch = next(self._pass, _END)
        if batch is _END and self.batches == UNKNOWN:
            raise PassEndedError("the pass has no further batch")
        if batch is _END:
            raise UnusableLoaderError(
                f"DataLoader: {type(self._loader.dataset).__name__} ended after "
                f"{self._next % self.batches} batches of a pass, and its length says "
                f"{self.batches}: correct its __len__"
            )
        self._window[self._next] = self._convert(batch)
        self._window.pop(self._next - WINDOW, None)
        self._next += 1

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Context manager with the pass's random state; the task's is restored afterwards."""
        with generators_kept(), self._in_worker():
            _restore(self._states)
            yield
            self._states = generator_states()

    @contextmanager
    def _in_worker(self) -> Iterator[None]:
        """Context manager in which `get_worker_info()` describes one worker, if the loader has
        workers.
        """
        before = worker._worker_info
        if self._loader.num_workers:
            seed, data = self._order_of(self._number).seed, self._loader.dataset
            worker._worker_info = worker.WorkerInfo(id=0, num_workers=1, seed=seed, dataset=data)
        try:
            yield
        finally:
            worker._worker_info = before
