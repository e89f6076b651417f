"""Learning rates of a graph: numbers, TensorFlow's decays, and any function of global_step.

A decay is recognized by its call within the model_fn, and accepted only if its rates equal those
that TensorFlow computes from the graph. Other functions become a table, up to the last step.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np

from csrun.base.errors import UsageError
from csrun.executable.learning_rate import (
    Constant,
    Cosine,
    Exponential,
    PiecewiseConstant,
    Polynomial,
    Schedule,
)
from csrun.tensorflow.errors import refused
from csrun.tensorflow.graph_folding import value_of
from csrun.tensorflow.graph_gradients import ancestors, variables_by_operator
from csrun.tensorflow.tf_version import tf

Rate = float | Schedule
TOLERANCE = 2e-6  # between TensorFlow's float32 and a schedule's float64
MOST_TABLE = 200_000  # steps of a table


@dataclass
class RateReader:
    """Learning rates of one graph. last: the last step of the run, None if the data ends it."""

    last: int | None
    _calls: list[Schedule] = field(default_factory=list)
    _known: dict[str, Rate] = field(default_factory=dict)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Context manager that records the calls of TensorFlow's decays."""
        with ExitStack() as stack:
            for name, make in _DECAYS.items():
                original = getattr(tf.compat.v1.train, name)
                wrapper = partial(self._call, original, make)
                for module in (tf.compat.v1.train, tf.train):
                    if getattr(module, name, None) is original:
                        stack.enter_context(patch.object(module, name, wrapper))
            yield

    def _call(self, original: Any, make: Any, *arguments: Any, **options: Any) -> Any:
        given = signature(original).bind(*arguments, **options)
        given.apply_defaults()
        with suppress(TypeError, ValueError, UsageError):  # of tensors, or another form
            self._calls.append(make(given.arguments))
        return original(*arguments, **options)

    def of(self, tensor: Any) -> Rate:
        """Return the rate of a tensor of the graph.

        Raises: GraphError for one that depends on more than global_step
        """
        if tensor.name not in self._known:
            value = value_of(tensor)
            self._known[tensor.name] = float(value) if value is not None else self._found(tensor)
        return self._known[tensor.name]

    def _found(self, tensor: Any) -> Schedule:
        with _Sampler(tensor) as sample:
            candidates = [*self._calls, *_warmed(self._calls)]
            steps = sorted({0, 1, 2, 3, 5, 10, 100, 1000, 10**6, *_turns(candidates)})
            rates = {step: sample(step) for step in steps}
            for schedule in candidates:
                if all(_is_close(schedule.at(step), rate) for step, rate in rates.items()):
                    return schedule
            if self.last is None or self.last > MOST_TABLE:
                raise refused(
                    tensor.op,
                    "this learning rate needs the number of steps: set max_steps, up to "
                    f"{MOST_TABLE}, or use one of {', '.join(_DECAYS)}",
                )
            return _table([sample(step) for step in range(self.last)])


class _Sampler:
    """Values of a rate at global steps, computed by TensorFlow."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._step = _global_step(tensor)

    def __enter__(self) -> Callable[[int], float]:
        self._session = tf.compat.v1.Session(graph=self._tensor.graph)
        return self._at

    def __exit__(self, *error: object) -> None:
        self._session.close()

    def _at(self, step: int) -> float:
        self._step.load(step, self._session)
        return float(self._session.run(self._tensor))


def _global_step(tensor: Any) -> Any:
    """Return the variable of the global step.

    Raises: GraphError for a rate that reads anything else
    """
    step = tf.compat.v1.train.get_global_step(tensor.graph)
    by_operator = variables_by_operator(tensor.graph)
    for op in ancestors([tensor.op]):
        variable = by_operator.get(op.name)
        if op.type == "Placeholder" or (variable is not None and variable is not step):
            raise refused(
                tensor.op,
                f"this learning rate reads {op.name}, and may depend on global_step only: compute "
                "it of tf.compat.v1.train.get_global_step() and numbers",
            )
    return step


def _is_close(found: float, wanted: float) -> bool:
    return abs(found - wanted) <= TOLERANCE * abs(wanted) + 1e-12


def _table(rates: list[float]) -> Schedule:
    """Return a value for each range of steps with the same rate."""
    changes = [n for n in range(1, len(rates)) if rates[n] != rates[n - 1]]
    values = tuple(rates[n] for n in (0, *changes))
    return PiecewiseConstant(boundaries=tuple(changes), values=values)


def _turns(schedules: list[Schedule]) -> Iterator[int]:
    """Return steps next to which schedules change their form."""
    for schedule in schedules:
        ends = [getattr(schedule, "steps", 0), *getattr(schedule, "boundaries", ())]
        for end in (schedule.warmup_steps, *(schedule.warmup_steps + n for n in ends)):
            yield from (n for n in (end // 2, end - 1, end, end + 1) if n > 0)


def _warmed(schedules: list[Schedule]) -> list[Schedule]:
    """Return each schedule after each linear warm-up from 0."""
    rises = [
        s.steps for s in schedules if isinstance(s, Polynomial) and not s.at(0) and s.power == 1
    ]
    import msgspec

    return [
        msgspec.structs.replace(schedule, warmup_steps=steps)
        for steps, schedule in product(rises, [*schedules, *_ends(schedules)])
    ]


def _ends(schedules: list[Schedule]) -> list[Schedule]:
    return [
        Constant(learning_rate=s.end_learning_rate) for s in schedules if isinstance(s, Polynomial)
    ]


def _polynomial(given: Any) -> Schedule:
    if given["cycle"]:
        raise ValueError("cycle")
    return Polynomial(
        initial_learning_rate=float(given["learning_rate"]),
        steps=int(given["decay_steps"]),
        end_learning_rate=float(given["end_learning_rate"]),
        power=float(given["power"]),
    )


def _exponential(given: Any) -> Schedule:
    if given["staircase"]:
        raise ValueError("staircase")
    return Exponential(
        initial_learning_rate=float(given["learning_rate"]),
        steps=int(given["decay_steps"]),
        decay_rate=float(given["decay_rate"]),
    )


def _cosine(given: Any) -> Schedule:
    rate = float(given["learning_rate"])
    return Cosine(
        initial_learning_rate=rate,
        steps=int(given["decay_steps"]),
        end_learning_rate=rate * float(given["alpha"]),
    )


def _piecewise(given: Any) -> Schedule:
    """Source: TensorFlow changes the rate after the boundary's step"""
    return PiecewiseConstant(
        boundaries=tuple(int(step) + 1 for step in given["boundaries"]),
        values=tuple(float(np.asarray(value)) for value in given["values"]),
    )


_DECAYS: dict[str, Callable[[Any], Schedule]] = {
    "polynomial_decay": _polynomial,
    "exponential_decay": _exponential,
    "cosine_decay": _cosine,
    "piecewise_constant": _piecewise,
    "piecewise_constant_decay": _piecewise,
}
