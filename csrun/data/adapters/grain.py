"""What a grain data set, or a grain DataLoader, tells of itself."""

from collections.abc import Iterable, Iterator
from typing import Any

from csrun.data.adapters.grain_steps import (
    Options,
    function_options,
    kinds,
    shuffle_options,
    source_options,
    told,
    worker_options,
)
from csrun.data.adapters.random_access import RandomAccess
from csrun.data.operators import Level, Operator

UNKNOWN: Options = {"dataset": None, "samples": None}
Told = tuple[str, Options]


def describe(dataset: Any) -> tuple[Operator, ...]:
    """The chain from its source on; of data sets that are put together, the first one's."""
    steps = [step for step in map(told, _chain(dataset)) if step is not None]
    if not steps or steps[0][0] != "source":
        steps.insert(0, ("source", UNKNOWN))
    return _operators(type(dataset).__name__, steps)


def describe_loader(loader: Any) -> tuple[Operator, ...]:
    """A grain DataLoader: its source, sampler, operations and workers."""
    return _operators(type(loader).__name__, _loader_steps(loader))


def indexed(dataset: Any) -> RandomAccess | None:
    """The items of a MapDataset by number; None when a filter leaves holes among them."""
    steps = list(_chain(dataset, every=True))
    if any("FilterMapDataset" in kinds(step) for step in steps):
        return None
    repeats = [step for step in steps if "RepeatMapDataset" in kinds(step)]
    endless = any(told(step) == ("repeat", {"count": None}) for step in repeats)
    return RandomAccess(dataset, None if endless else len(dataset))


def _chain(dataset: Any, every: bool = False) -> Iterator[Any]:
    """The data sets below one, and itself, source first; with `every`, those of all branches."""
    below = [*getattr(dataset, "parents", ()), *getattr(dataset, "_datasets", ())]
    for parent in below if every else below[:1]:
        yield from _chain(parent, every)
    yield dataset


def _loader_steps(loader: Any) -> Iterator[Told]:
    sampler, workers = loader._sampler, loader._multiprocessing_options
    yield "source", source_options(loader._data_source)
    if getattr(sampler, "_shuffle", False):
        yield "shuffle", shuffle_options(sampler._seed)
    if (epochs := getattr(sampler, "_num_epochs", 1)) != 1:
        yield "repeat", {"count": epochs}
    for operation in loader._operations:
        yield _operation(operation)
    if workers.num_workers:
        yield "prefetch", worker_options(workers.num_workers, workers.per_worker_buffer_size)


def _operation(operation: Any) -> Told:
    if "Batch" in kinds(operation):
        drops = operation.drop_remainder
        return "batch", {"batch_size": operation.batch_size, "drop_remainder": drops}
    if "Filter" in kinds(operation):
        return "filter", {"function": type(operation).__name__}
    return "map", function_options(operation)


def _operators(iterable: str, steps: Iterable[Told]) -> tuple[Operator, ...]:
    """Steps as operators: of samples up to the batch, of batches from then on."""
    operators: list[Operator] = []
    level = Level.SAMPLE
    for name, options in steps:
        whole = {} if operators else {"iterable": iterable}
        operators.append(Operator(name, level, {**whole, **options}))
        level = Level.BATCH if name == "batch" else level
    return tuple(operators)
