"""Optimizer classes of scripts: recognized by their options, and checked by a step.

BERT's AdamWeightDecayOptimizer and the Model Zoo's AdamWOptimizer are AdamW with epsilon added
before the bias correction, and a class with LAMB in its name is LAMB. Since the class is the
user's, one of its steps is compared with the rule.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from csrun import nn
from csrun.cirh.ops.learning import UNLIMITED, Clipping
from csrun.nn.optimizer import Learning
from csrun.tensorflow.errors import GraphError
from csrun.tensorflow.gradient_clipping import clipping_of, refuse_edited
from csrun.tensorflow.graph_gradients import RequestedGradients, ancestors, operator_of
from csrun.tensorflow.graph_import import stored_name
from csrun.tensorflow.rate_schedules import RateReader
from csrun.tensorflow.tf_version import tf

Array = npt.NDArray[Any]
_OPTIONS = ("learning_rate", "weight_decay_rate", "epsilon")
_BETAS = (("beta1", "beta2"), ("beta_1", "beta_2"))  # of the Model Zoo, and of BERT
_CLIPS = re.compile(r"(.*/)?clip_by_(global_norm|norm|value)(_\d+)?")  # scopes of their operators
_SCALES = ("Mul", "RealDiv", "Minimum", "Maximum", "Identity")
_MOST_PROVEN = 4  # number of weights to compare, the smallest ones
_STEP = 1000  # a step at which no schedule is still 0
TOLERANCE, ROUNDING = 1e-5, 2.0**-22  # tolerances of the step, and of weights in float32


@dataclass
class ScriptOptimizers:
    """Uses of optimizers whose class is not TensorFlow's: their gradients and variables."""

    uses: list[tuple[Any, list[tuple[Any, Any]]]] = field(default_factory=list)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Context manager that records the uses."""
        from tensorflow.python.training import optimizer

        base = optimizer.Optimizer
        original = base.apply_gradients

        def apply(this: Any, pairs: Any, *arguments: Any, **options: Any) -> Any:
            given = list(pairs)
            if not type(this).__module__.startswith("tensorflow."):
                self.uses.append((this, given))
            return original(this, given, *arguments, **options)

        with patch.object(base, "apply_gradients", apply):
            yield

    def learning(
        self, ops: list[Any], requested: RequestedGradients, rates: RateReader
    ) -> tuple[Learning, set[str], Clipping] | None:
        """Return the optimizer of these operators, its variables and the limits of their gradients.

        None if no optimizer is of the script's own class.

        Raises: GraphError for an unknown optimizer, or one that computes another step
        """
        names = {op.name for op in ops}
        uses = [use for use in self.uses if any(operator_of(v).name in names for _, v in use[1])]
        if not uses:
            return None
        optimizer, pairs = uses[0]
        if len(uses) > 1 or _betas(optimizer) is None:
            raise GraphError(
                f"optimizer {type(optimizer).__name__} is not supported: use one of TensorFlow's, "
                "or AdamWOptimizer as the Model Zoo has it"
            )
        used = [(gradient, v) for gradient, v in pairs if gradient is not None]
        limits = {_checked_limits(gradient, v, requested) for gradient, v in used}
        if len(limits) > 1:
            raise GraphError(
                f"optimizer {type(optimizer).__name__}: some gradients are clipped by other limits "
                "than others: clip all of them by one limit, or none"
            )
        learning = _learning_of(optimizer, rates)
        step = _STEP if rates.last is None else min(_STEP, rates.last - 1)
        _StepProof(learning, optimizer, step).run([v for _, v in used], requested, ops)
        names = {operator_of(v).name for _, v in used}
        return learning, names, next(iter(limits), UNLIMITED)


def _checked_limits(gradient: Any, variable: Any, requested: RequestedGradients) -> Clipping:
    found, name = clipping_of(gradient, requested.variables), operator_of(variable).name
    if found is None or requested.variables[found[1]] != name:
        raise refuse_edited(gradient.op, name)
    return found[0]


def _betas(optimizer: Any) -> tuple[float, float] | None:
    """Return the decays of the moments; None for an optimizer without the options."""
    names = next((pair for pair in _BETAS if hasattr(optimizer, pair[0])), None)
    if names is None or not all(hasattr(optimizer, name) for name in (*_OPTIONS, names[1])):
        return None
    return float(getattr(optimizer, names[0])), float(getattr(optimizer, names[1]))


def _learning_of(optimizer: Any, rates: RateReader) -> nn.AdamW | nn.Lamb:
    rate, betas = optimizer.learning_rate, _betas(optimizer)
    assert betas is not None, "checked before"
    options: dict[str, Any] = {
        "learning_rate": rates.of(rate) if hasattr(rate, "op") else float(rate),
        "weight_decay": float(optimizer.weight_decay_rate or 0.0),
        "beta1": betas[0],
        "beta2": betas[1],
        "epsilon": float(optimizer.epsilon),
        "bias_correction": bool(getattr(optimizer, "use_bias_correction", False)),
        "exclude_from_weight_decay": tuple(optimizer.exclude_from_weight_decay or ()),
    }
    if "lamb" in type(optimizer).__name__.lower():
        return nn.Lamb(**options)
    return nn.AdamW(epsilon_hat=True, **options)


@dataclass(frozen=True)
class _StepProof:
    """Comparison of a step of the user's class with the rule, on random numbers."""

    learning: nn.AdamW | nn.Lamb
    optimizer: Any
    step: int

    def run(self, variables: list[Any], requested: RequestedGradients, ops: list[Any]) -> None:
        """Compare the steps of the smallest weights.

        Raises: GraphError, with the difference, for another step
        """
        updates = {op.inputs[0].op.name: op.inputs[1] for op in ops if op.type.startswith("Assign")}
        placeholders = {variable: name for name, variable in requested.variables.items()}
        smallest = sorted(variables, key=lambda v: v.shape.num_elements())[:_MOST_PROVEN]
        rng = np.random.default_rng(0)
        graph = smallest[0].graph
        with tf.compat.v1.Session(graph=graph) as session:
            for variable in smallest:
                name = operator_of(variable).name
                shape = variable.shape.as_list()
                numbers = [rng.standard_normal(shape) for _ in range(3)] + [rng.random(shape)]
                gradient = graph.get_tensor_by_name(f"{placeholders[name]}:0")
                self._compare(session, variable, updates[name], gradient, numbers)

    def _compare(
        self, session: Any, variable: Any, update: Any, gradient: Any, numbers: list[Array]
    ) -> None:
        """Compare one weight's step. numbers: weight, gradient and moments."""
        needed = {op.name for op in ancestors([update.op])}
        others = session.graph.get_collection("variables")
        session.run([each.initializer for each in others if operator_of(each).name in needed])
        tf.compat.v1.train.get_global_step(session.graph).load(self.step, session)
        w, g, m, v = numbers
        for place, value in ((variable, w), *_slots(self.optimizer, variable, m, v)):
            place.load(value, session)
        # the gradient after clipping, so that the norm of all gradients is not needed
        found = session.run(update, {_after_clipping(gradient, update): g})
        name = stored_name(operator_of(variable).name)
        wanted = _stepped(self.learning, name, self.step, numbers)
        difference, moved = np.abs(found - wanted).max(), np.abs(wanted - w).max()
        if not difference <= TOLERANCE * moved + ROUNDING * np.abs(w).max():
            raise GraphError(
                f"optimizer {type(self.optimizer).__name__}: its step of {name} is not that of "
                f"{type(self.learning).__name__}, by {difference / max(moved, 1e-30):.1g} of the "
                "step: use the class unchanged"
            )


def _slots(optimizer: Any, variable: Any, m: Array, v: Array) -> list[tuple[Any, Array]]:
    return [(optimizer.get_slot(variable, "m"), m), (optimizer.get_slot(variable, "v"), v)]


def _after_clipping(source: Any, update: Any) -> Any:
    """Return the tensor that the optimizer uses as gradient: the placeholder, or a clipped one."""
    inside = {op.name for op in ancestors([update.op])}
    tensor = source
    while True:
        users = [op for op in tensor.consumers() if op.name in inside]
        clips = [op for op in users if _CLIPS.fullmatch(op.name.rpartition("/")[0])]
        scaled = [op for op in clips if op.type in _SCALES and not _is_square(op)]
        if not scaled:
            return tensor
        tensor = scaled[0].outputs[0]


def _is_square(op: Any) -> bool:
    return op.type == "Mul" and op.inputs[0] is op.inputs[1]


def _stepped(learning: nn.AdamW | nn.Lamb, name: str, step: int, numbers: list[Array]) -> Array:
    """Return the step of the rule, in float64."""
    w, g, m, v = numbers
    rate = learning.learning_rate
    lr = rate if isinstance(rate, float | int) else rate.at(step)
    next_m = learning.beta1 * m + (1 - learning.beta1) * g
    next_v = learning.beta2 * v + (1 - learning.beta2) * g * g
    update = next_m / (np.sqrt(next_v) + learning.epsilon)
    if learning.bias_correction:
        update = update * np.sqrt(1 - learning.beta2) / (1 - learning.beta1)
    if not any(re.search(pattern, name) for pattern in learning.exclude_from_weight_decay):
        update = update + learning.weight_decay * w
    if isinstance(learning, nn.Lamb):
        update = update * np.linalg.norm(w) / np.linalg.norm(update)
    return w - lr * update
