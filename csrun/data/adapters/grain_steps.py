"""The steps of a grain data set, and the operators that they are.

grain has no public way to ask for them: names and options are those of grain 0.2, and what another
version calls differently is left out.
"""

from collections.abc import Callable, Mapping
from typing import Any

from csrun.data.operators import name_of

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


def told(step: Any) -> tuple[str, Options] | None:
    """The operator that a step is, and its options; None for one that only hands elements on."""
    operator = next((OPERATORS[kind] for kind in kinds(step) if kind in OPERATORS), None)
    if operator is None:
        return None
    if operator == "interleave" and (workers := _processes(step)):
        return "prefetch", workers
    return operator, OPTIONS[operator](step)


def kinds(step: Any) -> tuple[str, ...]:
    """The names of its class and those above it."""
    return tuple(cls.__name__ for cls in type(step).__mro__)


def source_options(data: Any) -> Options:
    """What is known of the data below all steps."""
    return {"dataset": type(data).__name__, "samples": len(data)}


def worker_options(workers: int, buffered: int) -> Options:
    """Processes that read ahead, each of them so many elements."""
    return {"ahead": workers * buffered, "num_workers": workers, "prefetch_factor": buffered}


def shuffle_options(seed: int | None, window: int | None = None) -> Options:
    """A shuffle of the whole, or of a window at a time."""
    return {"kind": "window" if window else "whole", "seed": seed, "window": window}


def function_options(function: Any) -> Options:
    """A function that is called for one element after the other."""
    return {"function": name_of(function), "num_parallel_calls": None}


def _batch(step: Any) -> Options:
    return {"batch_size": _of(step, "batch_size"), "drop_remainder": _of(step, "drop_remainder")}


def _prefetch(step: Any) -> Options:
    options = _of(step, "read_options")
    if options is None:
        return {"ahead": _of(step, "prefetch_buffer_size")}
    return {"ahead": options.prefetch_buffer_size, "num_threads": options.num_threads}


def _processes(step: Any) -> Options:
    """Of worker processes, whose elements grain puts together as it interleaves data sets."""
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
