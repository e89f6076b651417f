"""Optimizer of a graph, from the Apply operators below its train_op."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from csrun import nn
from csrun.cirh.algorithms import AdadeltaAttr, Algorithm, RmsPropAttr
from csrun.cirh.ops.learning import UNLIMITED, Clipping
from csrun.executable.learning_rate import Constant
from csrun.nn import Tensor
from csrun.nn.optimizer import Learning, TrainOp, schedule_attribute
from csrun.tensorflow.errors import GraphError, line_of, refused
from csrun.tensorflow.gradient_clipping import clipping_of, refuse_edited
from csrun.tensorflow.graph_branches import BRANCHES
from csrun.tensorflow.graph_folding import value_of
from csrun.tensorflow.graph_gradients import RequestedGradients, ancestors, variables_by_operator
from csrun.tensorflow.rate_schedules import Rate, RateReader
from csrun.tensorflow.script_optimizers import ScriptOptimizers


@dataclass(frozen=True)
class GraphLearning:
    """Learning algorithm of a graph.

    optimizer: csrun's.
    trained: names of the variables' operators.
    clipping: limits of gradients.
    """

    optimizer: Learning
    trained: frozenset[str]
    clipping: Clipping = UNLIMITED

    def minimize(self, loss: Tensor) -> TrainOp:
        """Return the train_op of csrun's tracer."""
        return replace(self.optimizer.minimize(loss), clipping=self.clipping)


def learning_of(
    train_op: Any, requested: RequestedGradients, rates: RateReader, own: ScriptOptimizers
) -> GraphLearning:
    """Return the learning algorithm of a train_op.

    Raises: GraphError for unsupported updates, or updates that differ between variables
    """
    ops = ancestors([getattr(train_op, "op", train_op)], by_control=True)
    if (found := own.learning(ops, requested, rates)) is not None:
        optimizer, names, clipping = found
        return GraphLearning(optimizer, frozenset(names), clipping)
    applied = [op for op in ops if op.type in _RULES]
    _require_known(ops, requested)
    if not applied:
        if branch := next((op for op in ops if op.type in BRANCHES), None):
            raise refused(
                branch,
                "train_op depends on a predicate that changes, and csrun updates weights in each "
                "step: leave tf.cond out; to accumulate gradients, set grad_accum_steps in the "
                "optimizer section of params",
            )
        raise GraphError(
            "model_fn: no update of a variable is below train_op: it must be the result of an "
            "optimizer's minimize or apply_gradients"
        )
    reader = _ApplyReader(requested, rates)
    read = [reader.read(op) for op in applied]
    for op, each in zip(applied, read, strict=True):
        if (each.optimizer, each.clipping) != (read[0].optimizer, read[0].clipping):
            raise refused(
                op,
                "its options or its gradient's limits differ from those of other variables: train "
                "all of them by one optimizer with equal options and limits",
            )
    return replace(read[0], trained=frozenset().union(*(each.trained for each in read)))


class _ApplyReader:
    """Reads Apply operators."""

    def __init__(self, requested: RequestedGradients, rates: RateReader) -> None:
        self._asked = requested
        self._rates = rates

    def read(self, op: Any) -> GraphLearning:
        names = [argument.name for argument in op.op_def.input_arg]
        inputs = dict(zip(names, op.inputs, strict=True))
        gradient = inputs["grad" if "grad" in inputs else "delta"]
        clipped, variable = clipping_of(gradient, self._asked.variables), inputs["var"].op.name
        if clipped is None or self._asked.variables[clipped[1]] != variable:
            raise refuse_edited(gradient.op, variable)
        rate = self._rates.of(inputs.get("lr", inputs.get("alpha")))
        kind, values = _RULES[op.type](_ApplyNumbers(op, inputs), rate)
        return GraphLearning(kind(**values), frozenset({variable}), clipped[0])


@dataclass(frozen=True)
class _ApplyNumbers:
    """Constant inputs and attributes of an Apply operator."""

    op: Any
    inputs: Mapping[str, Any]

    def number(self, name: str) -> float:
        """Return a constant input.

        Raises: GraphError for an input that changes
        """
        value = value_of(self.inputs[name])
        if value is None:
            raise refused(self.op, f"{name} changes with the steps: give the optimizer a number")
        return float(value)

    def flag(self, name: str) -> bool:
        return bool(self.op.get_attr(name))

    def first_value(self, name: str) -> float:
        """Return the initial value of a slot variable."""
        variable = variables_by_operator(self.op.graph)[self.inputs[name].op.name]
        found = value_of(variable.initial_value)
        if found is None or (found != found.flat[0]).any():
            raise refused(self.op, f"slot {name} must begin with one number: leave its value out")
        return float(found.flat[0])


Options = tuple[Callable[..., Learning], dict[str, Any]]


def _descent(given: _ApplyNumbers, rate: Rate) -> Options:
    return nn.SGD, {"learning_rate": rate}


def _momentum(given: _ApplyNumbers, rate: Rate) -> Options:
    """Source: tf.raw_ops.ResourceApplyMomentum: the velocity is that of PyTorch"""
    nesterov = given.flag("use_nesterov")
    momentum = given.number("momentum")
    return nn.SGD, {"learning_rate": rate, "momentum": momentum, "nesterov": nesterov}


def _adam(given: _ApplyNumbers, rate: Rate) -> Options:
    """Source: tf.raw_ops.ResourceApplyAdam: epsilon is added before the bias correction"""
    if given.flag("use_nesterov"):
        raise refused(
            given.op, "Nesterov momentum is not supported in Adam: leave use_nesterov out"
        )
    names = ("beta1", "beta2", "epsilon")
    numbers = {name: given.number(name) for name in names}
    return nn.Adam, {"learning_rate": rate, "epsilon_hat": True, **numbers}


def _adagrad(given: _ApplyNumbers, rate: Rate) -> Options:
    """Source: tf.raw_ops.ResourceApplyAdagrad: there is no epsilon, only the initial sum"""
    first = given.first_value("accum")
    return nn.Adagrad, {"learning_rate": rate, "initial_accumulator": first, "epsilon": 1e-30}


class _TensorFlowRmsProp(
    nn.RMSProp, frozen=True, forbid_unknown_fields=True, tag="tensorflow_rmsprop"
):
    """RMSProp of TensorFlow: epsilon is inside the root, and the velocity includes the rates."""

    initial_accumulator: float = 1.0

    def algorithm(self) -> Algorithm:
        """Return the learning algorithm as an attribute of CIRH."""
        is_constant = isinstance(self.learning_rate, Real | Constant)
        return RmsPropAttr.of(
            schedule_attribute(self.learning_rate),
            self.alpha,
            self.epsilon,
            self.momentum,
            self.centered,
            epsilon_inside=True,
            initial_accumulator=self.initial_accumulator,
            rate_inside=bool(self.momentum) and not is_constant,
        )


def _rmsprop(given: _ApplyNumbers, rate: Rate) -> Options:
    """Source: tf.raw_ops.ResourceApplyRMSProp, ResourceApplyCenteredRMSProp"""
    names = {"alpha": "rho", "epsilon": "epsilon", "momentum": "momentum"}
    numbers = {name: given.number(own) for name, own in names.items()}
    first = given.first_value("ms")
    centered = "mg" in given.inputs
    return _TensorFlowRmsProp, {
        "learning_rate": rate,
        "centered": centered,
        "initial_accumulator": first,
        **numbers,
    }


class _TensorFlowAdadelta(
    Learning, frozen=True, forbid_unknown_fields=True, tag="tensorflow_adadelta"
):
    """Adadelta of TensorFlow, which is that of PyTorch."""

    rho: float
    epsilon: float

    def algorithm(self) -> Algorithm:
        """Return the learning algorithm as an attribute of CIRH."""
        return AdadeltaAttr.of(schedule_attribute(self.learning_rate), self.rho, self.epsilon)


def _adadelta(given: _ApplyNumbers, rate: Rate) -> Options:
    """Source: tf.raw_ops.ResourceApplyAdadelta"""
    numbers = {name: given.number(name) for name in ("rho", "epsilon")}
    return _TensorFlowAdadelta, {"learning_rate": rate, **numbers}


#: Rules that TensorFlow applies only to the rows of an embedding that a batch has.
LAZY_RULES = (_TensorFlowRmsProp, _TensorFlowAdadelta)

_RULES: dict[str, Callable[[_ApplyNumbers, Rate], Options]] = {
    "ResourceApplyGradientDescent": _descent,
    "ApplyGradientDescent": _descent,
    "ResourceApplyMomentum": _momentum,
    "ApplyMomentum": _momentum,
    "ResourceApplyAdam": _adam,
    "ApplyAdam": _adam,
    "ResourceApplyAdagrad": _adagrad,
    "ApplyAdagrad": _adagrad,
    "ResourceApplyAdadelta": _adadelta,
    "ApplyAdadelta": _adadelta,
    "ResourceApplyRMSProp": _rmsprop,
    "ApplyRMSProp": _rmsprop,
    "ResourceApplyCenteredRMSProp": _rmsprop,
    "ApplyCenteredRMSProp": _rmsprop,
}


def _require_known(ops: list[Any], requested: RequestedGradients) -> None:
    """Raises: GraphError for an optimizer without a rule, or an assignment to a weight"""
    weights = set(requested.variables.values())
    for op in ops:
        if "Apply" in op.type and op.type not in _RULES and op.type.startswith(("Res", "App")):
            known = sorted({name.rpartition("Apply")[2] for name in _RULES})
            raise refused(op, f"this optimizer is not supported: use one of {', '.join(known)}")
        is_assignment = op.type.startswith("Assign") and op.inputs
        if is_assignment and op.inputs[0].op.name in weights:
            raise GraphError(
                f"{line_of(op)}: {op.inputs[0].op.name} is assigned by {op.type}: only optimizers "
                "of TensorFlow may update weights"
            )
