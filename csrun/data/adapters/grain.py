"""Adapter for grain data sets and DataLoaders."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from csrun.data.errors import require
from csrun.data.input_operators import InputOperator, Level, name_of

Options = Mapping[str, Any]

OPERATORS = {
    "SourceMapDataset": "source",
    "RangeMapDataset": "source",
    "ShuffleMapDataset": "shuffle",
    "WindowShuffleMapDataset": "shuffle",
    "WindowShuffleIterDataset": "shuffle",
    "RepeatMapDataset": "repeat",
    "RepeatIterDataset": "repeat",
    "BatchMapDataset": "batch",
    "BatchIterDataset": "batch",
    "MapMapDataset": "map",
    "MapIterDataset": "map",
    "RandomMapMapDataset": "map",
    "RandomMapIterDataset": "map",
    "MapWithIndexMapDataset": "map",
    "MapWithIndexIterDataset": "map",
    "FlatMapMapDataset": "map",
    "FlatMapIterDataset": "map",
    "FilterMapDataset": "filter",
    "FilterIterDataset": "filter",
    "CacheIterDataset": "cache",
    "InterleaveIterDataset": "interleave",
    "PrefetchIterDataset": "prefetch",
    "ThreadPrefetchIterDataset": "prefetch",
}


@dataclass(frozen=True)
class RandomAccess:
    """Items by index. length: number of items; None if endless."""

    items: Any
    length: int | None

    def __getitem__(self, number: int) -> Any:
        """Return an item; an index beyond the length belongs to a further pass."""
        item = self.items[number]
        rule = "every item must exist to be read by index"
        require(item is not None, f"input_fn: item {number} of the {self.name}", rule, "None")
        return item

    @property
    def name(self) -> str:
        """Name of the source."""
        return type(self.items).__name__


def operator_of(step: Any) -> tuple[str, Options] | None:
    """Return the operator of a step with its options; None if it passes elements unchanged."""
    operator = next((OPERATORS[kind] for kind in kinds(step) if kind in OPERATORS), None)
    if operator is None:
        return None
    if operator == "interleave" and (workers := _processes(step)):
        return "prefetch", workers
    return operator, OPTIONS[operator](step)


def kinds(step: Any) -> tuple[str, ...]:
    """Names of its class and base classes."""
    return tuple(cls.__name__ for cls in type(step).__mro__)


def source_options(data: Any) -> Options:
    """Options of the source."""
    return {"dataset": type(data).__name__, "samples": len(data)}


def worker_options(workers: int, buffered: int) -> Options:
    """Options of worker processes that read ahead."""
    return {"ahead": workers * buffered, "num_workers": workers, "prefetch_factor": buffered}


def shuffle_options(seed: int | None, window: int | None = None) -> Options:
    """Options of a global or windowed shuffle."""
    return {"kind": "window" if window else "whole", "seed": seed, "window": window}


def function_options(function: Any) -> Options:
    """Options of a function called per element."""
    return {"function": name_of(function), "num_parallel_calls": None}


def _batch(step: Any) -> Options:
    return {"batch_size": _of(step, "batch_size"), "drop_remainder": _of(step, "drop_remainder")}


def _prefetch(step: Any) -> Options:
    options = _of(step, "read_options")
    if options is None:
        return {"ahead": _of(step, "prefetch_buffer_size")}
    return {"ahead": options.prefetch_buffer_size, "num_threads": options.num_threads}


def _processes(step: Any) -> Options:
    """Options of worker processes, whose elements grain interleaves."""
    parts = _of(step, "datasets") or ()
    if not parts or "ProcessPrefetchIterDataset" not in kinds(parts[0]):
        return {}
    return worker_options(len(parts), _of(parts[0], "buffer_size") or 1)


def _of(step: Any, name: str) -> Any:
    return getattr(step, f"_{name}", None)


OPTIONS: dict[str, Callable[[Any], Options]] = {
    "source": lambda step: source_options(step._source if hasattr(step, "_source") else step),
    "shuffle": lambda step: shuffle_options(_of(step, "seed"), _of(step, "window_size")),
    "repeat": lambda step: {"count": _of(step, "num_epochs")},
    "batch": _batch,
    "map": lambda step: function_options(_of(step, "transform") or step),
    "filter": lambda step: {"function": name_of(_of(step, "filter_fn") or step)},
    "cache": lambda step: {},
    "interleave": lambda step: {"cycle_length": _of(step, "cycle_length")},
    "prefetch": _prefetch,
}


UNKNOWN: Options = {"dataset": None, "samples": None}
Described = tuple[str, Options]


def describe(dataset: Any) -> tuple[InputOperator, ...]:
    """Return the operators of a data set, source first; of several, those of the first."""
    steps = [step for step in map(operator_of, _chain(dataset)) if step is not None]
    if not steps or steps[0][0] != "source":
        steps.insert(0, ("source", UNKNOWN))
    return _operators(type(dataset).__name__, steps)


def describe_loader(loader: Any) -> tuple[InputOperator, ...]:
    """Return the operators of a grain DataLoader: source, sampler, operations and workers."""
    return _operators(type(loader).__name__, _loader_steps(loader))


def indexed(dataset: Any) -> RandomAccess | None:
    """Return the items of a MapDataset by index; None if a filter removes some."""
    steps = list(_chain(dataset, every=True))
    if any("FilterMapDataset" in kinds(step) for step in steps):
        return None
    repeats = [step for step in steps if "RepeatMapDataset" in kinds(step)]
    endless = any(operator_of(step) == ("repeat", {"count": None}) for step in repeats)
    return RandomAccess(dataset, None if endless else len(dataset))


def _chain(dataset: Any, every: bool = False) -> Iterator[Any]:
    """Return a data set and its parents, source first; with `every`, of all branches."""
    below = [*getattr(dataset, "parents", ()), *getattr(dataset, "_datasets", ())]
    for parent in below if every else below[:1]:
        yield from _chain(parent, every)
    yield dataset


def _loader_steps(loader: Any) -> Iterator[Described]:
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


def _operation(operation: Any) -> Described:
    if "Batch" in kinds(operation):
        drops = operation.drop_remainder
        return "batch", {"batch_size": operation.batch_size, "drop_remainder": drops}
    if "Filter" in kinds(operation):
        return "filter", {"function": type(operation).__name__}
    return "map", function_options(operation)


def _operators(iterable: str, steps: Iterable[Described]) -> tuple[InputOperator, ...]:
    """Convert steps to operators: on samples up to the batch, then on batches."""
    operators: list[InputOperator] = []
    level = Level.SAMPLE
    for name, options in steps:
        whole = {} if operators else {"iterable": iterable}
        operators.append(InputOperator(name, level, {**whole, **options}))
        level = Level.BATCH if name == "batch" else level
    return tuple(operators)
