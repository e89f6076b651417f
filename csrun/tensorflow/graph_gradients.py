"""Gradients requested by a model_fn: placeholders, since csrun computes the gradients itself.

No gradient is built in TensorFlow. The uses of a placeholder show what the model_fn does with it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from csrun.tensorflow.errors import GraphError, line_of
from csrun.tensorflow.tf_version import tf


@dataclass
class RequestedGradients:
    """Gradients by the name of their placeholder.

    losses: tensors that are differentiated, in the order of the calls.
    variables: name of the variable's operator, by the placeholder's operator.
    """

    losses: list[Any] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Context manager that returns placeholders for requested gradients."""
        from tensorflow.python.ops import gradients_util

        original = gradients_util._GradientsHelper

        def ask(ys: Any, xs: Any, *unused: Any, **options: Any) -> list[Any]:
            return self._ask(ys, xs)

        gradients_util._GradientsHelper = ask
        try:
            yield
        finally:
            gradients_util._GradientsHelper = original

    def _ask(self, ys: Any, xs: Any) -> list[Any]:
        """Return a placeholder for each variable that the loss depends on, None for the others."""
        losses = list(ys) if isinstance(ys, list | tuple) else [ys]
        self.losses += losses
        reached = ancestors([loss.op for loss in losses])
        names = {op.name for op in reached}
        return [self._gradient(x, names) for x in (xs if isinstance(xs, list | tuple) else [xs])]

    def _gradient(self, x: Any, reached: set[str]) -> Any:
        operator = operator_of(x)
        if operator.name not in reached:
            return None
        variable = variables_by_operator(operator.graph).get(operator.name)
        if variable is None:
            raise GraphError(
                f"{line_of(operator)}: the gradient of {x.name} is requested, which is not a "
                "variable: request those of tf.compat.v1.trainable_variables()"
            )
        made = tf.compat.v1.placeholder(
            variable.dtype.base_dtype, variable.shape, name=f"gradient_of/{operator.name}"
        )
        self.variables[made.op.name] = operator.name
        return made


def operator_of(x: Any) -> Any:
    """Return the operator of a tensor or variable; for a variable the one that holds it."""
    return x.handle.op if hasattr(x, "handle") else x.op


def variables_by_operator(graph: Any) -> dict[str, Any]:
    """Variables of a graph by the names of the operators that hold them."""
    keys = tf.compat.v1.GraphKeys
    found = {}
    for key in (keys.GLOBAL_VARIABLES, keys.TRAINABLE_VARIABLES, keys.LOCAL_VARIABLES):
        found.update({operator_of(v).name: v for v in graph.get_collection(key)})
    return found


def ancestors(ends: list[Any], by_control: bool = False) -> list[Any]:
    """Return operators and all that they depend on, in the order of creation.

    by_control: include control dependencies.
    """
    pending, seen = list(ends), {op.name: op for op in ends}
    while pending:
        op = pending.pop()
        before = [tensor.op for tensor in op.inputs]
        before += op.control_inputs if by_control else []
        new = [each for each in before if each.name not in seen]
        seen.update({each.name: each for each in new})
        pending += new
    return sorted(seen.values(), key=lambda op: op._id)
