"""Input functions: data sets of csrun, batches of arrays, and tf.data."""

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np

from csrun.executable import RunMode

log = logging.getLogger("csrun")

_seed = ContextVar("_seed", default=0)
_MODE_NAMES = {RunMode.TRAIN: "train", RunMode.EVAL: "eval", RunMode.PREDICT: "infer"}


def input_of(input_fn: Callable[..., Any], mode: RunMode, seed: int) -> Callable[[Any], Any]:
    """Return csrun's form of an input function, whose arguments may be params, mode or none."""

    def make(params: Any) -> Any:
        given = {"params": params, "mode": _MODE_NAMES[mode]}
        takes = inspect.signature(input_fn).parameters
        options = {
            name: value
            for name, value in given.items()
            if name in takes and (name == "params" or takes[name].default is takes[name].empty)
        }
        if "params" not in takes and _needs_one(takes):
            return _converted(lambda: input_fn(params), seed)
        return _converted(lambda: input_fn(**options), seed)

    return make


def _needs_one(takes: Any) -> bool:
    """True for a function whose only argument without a default has another name."""
    needed = [p for p in takes.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return len(needed) == 1 and needed[0].name != "mode"


def _converted(make: Callable[[], Any], seed: int) -> Any:
    """Call an input function, and convert TensorFlow objects that it returns."""
    before = _seed.set(seed)
    try:
        with _eager(seed), _ordered():
            found = make()
    finally:
        _seed.reset(before)
    return TfBatches(found, seed) if _is_tf_data(found) else found


def run_seed() -> int:
    """Return the run's seed within a call of an input function, else 0."""
    return _seed.get()


def _is_tf_data(found: Any) -> bool:
    return any(
        cls.__module__.partition(".")[0] == "tensorflow" and cls.__name__ == "DatasetV2"
        for cls in type(found).__mro__
    )


@contextmanager
def _eager(seed: int) -> Iterator[None]:
    """Run TensorFlow operators eagerly, with the run's seed, if TensorFlow is imported.

    Each task of a job then makes the same batches, whatever it has computed before.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        yield
        return
    from tensorflow.python.eager import context

    with context.eager_mode():
        tensorflow.random.set_seed(seed)
        yield


@contextmanager
def _ordered() -> Iterator[None]:
    """Make parallel transformations deterministic, whatever a script requests.

    Each task of a job reads all of the data, and only uses its own batches.
    """
    tensorflow: Any = sys.modules.get("tensorflow")
    with ExitStack() as stack:
        if tensorflow is not None:
            kind = tensorflow.data.Dataset
            for name in ("map", "interleave"):
                ordered = _without_disorder(getattr(kind, name))
                stack.enter_context(patch.object(kind, name, ordered))
        yield


def _without_disorder(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a transformation whose `deterministic` is never False."""

    @wraps(original)
    def transform(*arguments: Any, **options: Any) -> Any:
        given = inspect.signature(original).bind(*arguments, **options)
        if given.arguments.get("deterministic") is False:
            del given.arguments["deterministic"]
        return original(*given.args, **given.kwargs)

    return transform


class TfBatches:
    """Batches of a tf.data.Dataset as NumPy arrays, from its beginning at each pass."""

    def __init__(self, dataset: Any, seed: int) -> None:
        from tensorflow.data import Options

        from csrun.tensorflow.tf_memory import warn_of_memory

        options = Options()
        options.deterministic = True
        self._dataset = dataset.with_options(options)
        self._seed = seed
        warn_of_memory()

    def __iter__(self) -> Iterator[Any]:
        with _eager(self._seed):
            batches = iter(self._dataset.as_numpy_iterator())
        yield from map(_plain, batches)


def _plain(batch: Any) -> Any:
    """Return a batch whose 16-bit floats have a type that NumPy has."""
    if isinstance(batch, dict):
        return {name: _plain(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return tuple(map(_plain, batch))
    array = np.asarray(batch)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
