"""torch DataLoader as a csrun Dataset: any batch by its number, in torch's order."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch
from torch.utils._pytree import (
    keystr,
    tree_flatten,
    tree_leaves,
    tree_leaves_with_path,
    tree_map,
)
from torch.utils.data import DataLoader

from csrun.context import Role, current
from csrun.data import Dataset
from csrun.data.adapters.grain import RandomAccess
from csrun.data.adapters.torch import describe
from csrun.data.adapters.torch_batches import LoaderBatches
from csrun.data.errors import UnequalBatchesError, UnusableLoaderError
from csrun.data.indexed import batches_of
from csrun.data.input_operators import Level
from csrun.data.samples import Rows
from csrun.data.structure import Elements
from csrun.pytorch.half_types import HALF_TYPES, log_widened
from csrun.pytorch.loader.iterated import UNKNOWN, IteratedBatches, is_iterated, length_of
from csrun.pytorch.loader.order import PassOrders

log = logging.getLogger("csrun")
_OR_SCRIPT = "or leave cbtorch.dataloader out, so that the chief makes the batches"


def check(loader: Any, where: str) -> None:
    """Check that a loader's batches can be made by number, and warn of options without effect.

    where: the user's line, for messages.

    Raises: UnusableLoaderError for another loader
    """
    if not isinstance(loader, DataLoader):
        raise UnusableLoaderError(
            f"{where}: must be a torch.utils.data.DataLoader, got {type(loader).__name__}"
        )
    try:
        length = length_of(loader)
    except TypeError as error:
        raise UnusableLoaderError(
            f"{where}: the DataLoader has no length: give its sampler, or its dataset, __len__"
        ) from error
    if not length:
        raise UnusableLoaderError(
            f"{where}: the DataLoader is empty: {len(loader.dataset)} samples give no batch of "
            f"{loader.batch_size}: lower batch_size, or set drop_last=False"
        )
    if is_iterated(loader):
        log.warning(
            "%s: %s is an IterableDataset: each streamer makes all batches and keeps its own, so "
            "that more streamers are no faster; a Dataset with __getitem__ is divided among them",
            where,
            type(loader.dataset).__name__,
        )
    if length == UNKNOWN:
        log.warning(
            "%s: the number of batches of %s is not known: the loop's own task makes all of them, "
            "too, to find the end of a pass",
            where,
            type(loader.dataset).__name__,
        )
    if loader.num_workers:
        log.warning(
            "%s: num_workers=%d has no effect: the streamer tasks of a job make the batches, and "
            "--tasks-per-node sets their number",
            where,
            loader.num_workers,
        )
    if loader.pin_memory:
        log.warning("%s: pin_memory has no effect: batches go to the wafer's memory", where)


def batches_by_number(
    loader: "DataLoader[Any]", orders: PassOrders
) -> LoaderBatches | IteratedBatches:
    """Return the loader's batches, made on demand and cached."""
    if is_iterated(loader):
        return IteratedBatches(loader, orders.of, widened)
    context = current()
    is_alone = context is not None and context.role is Role.STREAMER
    if is_alone and loader.num_workers and loader.worker_init_fn is not None:
        loader.worker_init_fn(context.streamers.index(context.rank))  # type: ignore[union-attr]
    return WidenedBatches(loader, orders.of, is_alone)


class WidenedBatches(LoaderBatches):
    """Batches in which 16-bit floats are float32, as all arithmetic is."""

    def _made(self, number: int) -> Any:
        return widened(super()._made(number))


def widened(batch: Any) -> Any:
    """Return a batch with float32 in place of 16-bit floats."""
    return tree_map(_widened, batch)


def _widened(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.dtype not in HALF_TYPES:
        return leaf
    log_widened("a batch")
    return leaf.float()


def dataset_of(
    loader: "DataLoader[Any]",
    orders: PassOrders,
    tensors: "BatchTensors | None" = None,
    batches: LoaderBatches | IteratedBatches | None = None,
) -> Dataset:
    """Return the loader's batches as a Dataset, pass after pass, as far as their order is known.

    tensors: checks each batch. batches: of `batches_by_number`, if there are any already
    """
    elements = tensors or BatchTensors("DataLoader")
    items = RandomAccess(batches or batches_by_number(loader, orders), None)
    source = replace(batches_of(items, elements), batches=SentBatches(orders, length_of(loader)))
    return Dataset(source, Level.BATCH, describe(loader), elements)


@dataclass(frozen=True)
class SentBatches:
    """Batch numbers of the passes with a known order, `each` per pass, or fewer."""

    orders: PassOrders
    each: int

    @property
    def length(self) -> int:
        return self.orders.end() * self.each

    def at(self, epoch: int, positions: Rows) -> Rows:
        return positions


def require_rows(where: str, batch: Any) -> None:
    """Raises: UnequalBatchesError for a batch without tensors, or one without a row per sample"""
    rows = [x.shape[:1] for x in tree_leaves(batch) if isinstance(x, torch.Tensor)]
    if not rows:
        raise UnequalBatchesError(
            where,
            f"a batch has no tensors, got {type(batch).__name__}",
            f"have collate_fn return some, {_OR_SCRIPT}",
        )
    if len(set(rows)) > 1:
        said = " and ".join(str(shape[0]) if shape else "no" for shape in rows)
        raise UnequalBatchesError(
            where,
            f"each tensor of a batch must have a row for each of its samples, got {said} rows",
            f"add the row in the dataset, {_OR_SCRIPT}",
        )


def _paths_of(batch: Any) -> tuple[str, ...]:
    """Return the places of a batch's tensors, such as ["x"] or [0]."""
    pairs = tree_leaves_with_path(batch)
    return tuple(keystr(path) for path, leaf in pairs if isinstance(leaf, torch.Tensor))


def _text_of(paths: Sequence[str]) -> str:
    return f"tensors at {', '.join(paths)}" if any(paths) else "a tensor"


class BatchTensors(Elements):
    """The tensors of a batch in the order of torch's pytree: batch_0, batch_1, …"""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self._spec: Any = None  # of the latest batch; paths of its tensors if it has other objects
        self._paths: tuple[str, ...] = ()  # of the first batch, and the shape of a row of each
        self._shapes: list[tuple[int, ...]] = []

    def note_first(self, batch: Any) -> None:
        """Note the first batch of the run, which the chief makes for its loop."""
        if not self._paths:
            tensors = [x for x in tree_leaves(batch) if isinstance(x, torch.Tensor)]
            self._paths, self._shapes = _paths_of(batch), [tuple(x.shape[1:]) for x in tensors]

    def encode(self) -> bytes:
        """Encode the structure of the first batch for `decode` in another process."""
        return msgspec.msgpack.encode((self._paths, self._shapes))

    def decode(self, sent: bytes) -> None:
        """Take the structure of the first batch from the chief."""
        found = msgspec.msgpack.decode(sent, type=tuple[tuple[str, ...], list[tuple[int, ...]]])
        self._paths, self._shapes = found

    def taken(self, value: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """Return the batch's arrays.

        Other objects, such as text, are not included: the loop's task makes the batch, too.

        Raises: UnequalBatchesError for a batch unlike the first one, or without tensors
        """
        leaves, spec = tree_flatten(value)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if len(tensors) < len(leaves):
            spec = tuple(p for p, x in tree_leaves_with_path(value) if isinstance(x, torch.Tensor))
        require_rows(self._where, value)
        arrays = tuple(array_of(x, number, self._where) for number, x in enumerate(tensors))
        self.note_first(value)
        if spec != self._spec:
            self._require_paths(_paths_of(value))
            self._spec = spec
        self._require_shapes([array.shape[1:] for array in arrays])
        return arrays

    def _require_paths(self, paths: tuple[str, ...]) -> None:
        """Raises: UnequalBatchesError for other tensors than the first batch has"""
        if paths != self._paths:
            raise UnequalBatchesError(
                self._where,
                "all batches must have the structure of the first one, "
                f"{_text_of(self._paths)}, got {_text_of(paths)}",
                f"have collate_fn return the same keys and tuples, {_OR_SCRIPT}",
            )

    def _require_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Raises: UnequalBatchesError for other shapes than the first batch has"""
        for number, (had, has) in enumerate(zip(self._shapes, shapes, strict=True)):
            if had != has:
                raise UnequalBatchesError(
                    self._where,
                    f"all batches must have the shape of the first one: a row of part {number} "
                    f"had shape {list(had)} and now has {list(has)}",
                    f"have collate_fn pad to one size, {_OR_SCRIPT}",
                )

    def given(self, sample: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(sample)

    def names(self, count: int) -> list[str]:
        return [input_name(number) for number in range(count)]


def input_name(number: int) -> str:
    """Return the program's input name of a batch's tensor."""
    return f"batch_{number}"


def array_of(leaf: torch.Tensor, number: int, where: str) -> np.ndarray[Any, Any]:
    """Return a batch's tensor as an array of the same memory.

    Raises: UnusableLoaderError for anything but a dense CPU tensor of a type that NumPy has
    """
    try:
        return leaf.detach().numpy()  # type: ignore[no-any-return]
    except (TypeError, RuntimeError) as error:
        raise UnusableLoaderError(
            f"{where}: part {number} of a batch must be a dense CPU tensor of a type that NumPy "
            f"has, got {leaf.dtype} on {leaf.device}: convert it in collate_fn"
        ) from error
