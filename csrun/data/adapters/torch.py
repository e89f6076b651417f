"""What a torch DataLoader tells of itself."""

from collections.abc import Iterator
from typing import Any

from csrun.data.operators import Level, Operator, name_of

IN_ORDER = "SequentialSampler"
WHOLE = "RandomSampler"
STANDARD_COLLATE = ("default_collate", "default_convert")


def describe(loader: Any) -> tuple[Operator, ...]:
    """Its data set, sampler, batches, collate function and workers as operators, source first."""
    return tuple(_operators(loader))


def _operators(loader: Any) -> Iterator[Operator]:
    yield Operator("DataLoader", Level.SAMPLE, _source(loader))
    if (sampler := _sampler(loader)) not in (None, IN_ORDER):
        options = {"kind": "whole" if sampler == WHOLE else sampler, "seed": _seed(loader)}
        yield Operator("shuffle", Level.SAMPLE, {**options, "window": None})
    if (batch_size := _batch_size(loader)) is not None:
        options = {"batch_size": batch_size, "drop_remainder": _drops(loader)}
        yield Operator("batch", Level.SAMPLE, options)
    if (function := name_of(loader.collate_fn)) not in STANDARD_COLLATE:
        yield Operator("map", Level.BATCH, {"function": function, "num_parallel_calls": None})
    if loader.num_workers:
        yield Operator("prefetch", Level.BATCH, _workers(loader))


def _source(loader: Any) -> dict[str, Any]:
    """Its arguments under their own names, and what is known of its data set."""
    data = loader.dataset
    sized = hasattr(data, "__len__") and not _iterates(loader)
    return {
        "iterable": type(loader).__name__,
        "dataset": type(data).__name__,
        "samples": len(data) if sized else None,
        "in_memory": type(data).__name__ == "TensorDataset",
        "transform": name_of(data.transform) if getattr(data, "transform", None) else None,
        "shuffle": {WHOLE: True, IN_ORDER: False}.get(_sampler(loader) or ""),
        "seeded": loader.generator is not None,
        "drop_last": _drops(loader),
        "num_workers": loader.num_workers,
        "persistent_workers": loader.persistent_workers,
    }


def _workers(loader: Any) -> dict[str, Any]:
    factor = loader.prefetch_factor
    return {
        "ahead": loader.num_workers * factor,
        "num_workers": loader.num_workers,
        "prefetch_factor": factor,
    }


def _iterates(loader: Any) -> bool:
    """Whether its data set is an IterableDataset, whose order is its own."""
    return any(cls.__name__ == "IterableDataset" for cls in type(loader.dataset).__mro__)


def _sampler(loader: Any) -> str | None:
    """The kind of sampler that gives the order, also below a batch sampler of the user's."""
    if _iterates(loader):
        return None
    batches = loader.batch_sampler
    sampler = loader.sampler if batches is None else getattr(batches, "sampler", batches)
    return type(sampler).__name__


def _seed(loader: Any) -> int | None:
    return int(loader.generator.initial_seed()) if loader.generator is not None else None


def _batch_size(loader: Any) -> int | None:
    """None when batches are made elsewhere, or differ in size."""
    size = getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size
    return int(size) if size is not None else None


def _drops(loader: Any) -> bool:
    return bool(getattr(loader.batch_sampler, "drop_last", loader.drop_last))
