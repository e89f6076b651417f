"""Import of a graph's forward pass to CIRH: each operator that the requested tensors depend on."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.model import Distribution, InitializerAttr
from csrun.nn import Tensor
from csrun.nn.errors import TraceError, user_line
from csrun.nn.tracer import Tracer
from csrun.tensorflow.errors import GraphError, UnsupportedOperator, line_of, refused
from csrun.tensorflow.fused_patterns import Pattern, match
from csrun.tensorflow.graph_branches import BRANCHES
from csrun.tensorflow.graph_folding import fold, value_of
from csrun.tensorflow.graph_gradients import ancestors, variables_by_operator
from csrun.tensorflow.operators import EMITTERS, GraphEmission
from csrun.tensorflow.operators.base import Value
from csrun.tensorflow.operators.stopped_gradients import depends_on_weights
from csrun.tensorflow.variable_writes import ASSIGNMENTS, writes_before

_ZEROS = InitializerAttr.of(
    Distribution.ZEROS
)  # TensorFlow's initial values are written to the store
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_OTHERS = "rewrite the line with other operators"
_LOOP = (
    "the batch determines how often this loop runs: give tf.while_loop maximum_iterations, without "
    "a TensorArray among its values, or use dynamic_rnn with sequence_length"
)
#: Replacements of unsupported operators, by prefix of their kind.
_REMEDIES = {
    "TensorList": "give the TensorArray a fixed size and one value per index",
    "While": _LOOP,
    "StatelessWhile": _LOOP,
    "Where": "its shape depends on values: use tf.where with three arguments, or a mask",
    "StringToHash": "strings, and hashes of integers, are not computed: have the input_fn give "
    "integers, and use categorical_column_with_identity",
    "AsString": "strings, and hashes of integers, are not computed: have the input_fn give "
    "integers, and use categorical_column_with_identity",
}


def stored_name(operator: str) -> str:
    """Return a variable's name in a checkpoint: its own, below `model` if it has no layer."""
    return operator if "/" in operator else f"model/{operator}"


class GraphImporter:
    """Import of requested tensors into a tracer.

    inputs: the batch's tensors by the names of their placeholders' operators.
    trained: names of the operators of trained variables; None for all trainable ones.
    minimized: tensor that gradients are of, None if there are none.
    has_padded_labels: whether labels of -1 are padding.
    """

    def __init__(
        self,
        tracer: Tracer,
        inputs: Mapping[str, Tensor],
        trained: set[str] | None,
        minimized: Any = None,
        has_padded_labels: bool = False,
    ) -> None:
        differentiated = ancestors([] if minimized is None else [minimized.op])
        names = {op.name for op in differentiated}
        self._emission = GraphEmission(tracer, names, has_padded_labels)
        self._tracer = tracer
        self._inputs = inputs
        self._trained = trained
        self._values: dict[str, Value] = {}
        self._next_values: dict[str, Tensor] = {}  # by the names of assignments
        self._is_assigning = False
        self.assigned: dict[str, Any] = {}  # assignments by the names of the variables' operators
        self.variables: dict[str, Any] = {}  # imported assignments, by operator name

    def tensors(self, wanted: Sequence[Any]) -> list[Tensor]:
        """Import these tensors of the graph.

        Raises: GraphError, with the Python line, for an operator that has no CIRH form
        """
        ops = ancestors([tensor.op for tensor in wanted])
        self._values.update(fold([*ops]))
        self._fold_wanted(wanted)
        patterns = self._needed(wanted)
        for op in ops:
            if op.name in patterns:
                self._import(op, patterns[op.name])
        return [self._emission.tensor(self._value(tensor)) for tensor in wanted]

    def assign(self, op: Any) -> None:
        """Import an assignment, after the loss.

        Raises: GraphError as `tensors`; for a variable that is assigned twice
        """
        self._is_assigning = True
        (variable,) = self.tensors(op.inputs[:1])
        name = op.inputs[0].op.name
        if name in self.assigned:
            raise refused(op, f"{name} is assigned twice in a step: use another layer there")
        self.assigned[name] = op
        value = self._next_value(op)
        with self._located(op):
            self._tracer.assign(variable, value)

    def _next_value(self, op: Any) -> Tensor:
        """Return the value that an assignment gives a variable."""
        if op.name not in self._next_values:
            variable, value = self.tensors(op.inputs[:2])
            with self._located(op):
                self._next_values[op.name] = ASSIGNMENTS[op.type](variable, value)
        return self._next_values[op.name]

    def _fold_wanted(self, wanted: Sequence[Any]) -> None:
        """Fold requested tensors that are constants themselves."""
        for tensor in wanted:
            value = None if tensor.name in self._values else value_of(tensor)
            if value is not None:
                self._values[tensor.name] = value

    def _needed(self, wanted: Sequence[Any]) -> dict[str, Pattern | None]:
        """Return the operators to import, by name, with the patterns that end with them.

        Raises: GraphError for a branch that the batch does not determine
        """
        pending, found = list(wanted), dict[str, Pattern | None]()
        constants = {n: v for n, v in self._values.items() if not isinstance(v, Tensor)}
        while pending:
            tensor = pending.pop()
            op = tensor.op
            if tensor.name in self._values or op.name in found:
                continue
            if op.type in BRANCHES:
                raise refused(
                    op,
                    "the predicate of this tf.cond changes, and not by the batch: have the "
                    "input_fn give what it depends on as a feature",
                )
            found[op.name] = pattern = match(op, constants)
            pending += op.inputs if pattern is None else pattern.inputs
        return found

    def _value(self, tensor: Any) -> Value:
        return self._values[tensor.name]

    def _import(self, op: Any, pattern: Pattern | None) -> None:
        self._emission.op = op
        scope = op.name.rpartition("/")[0]
        with self._located(op), self._tracer.builder.in_scope(scope):
            if pattern is not None:
                found = pattern.emit(self._emission, *map(self._value, pattern.inputs))
            else:
                found = self._emitted(op)
            values = found if isinstance(found, tuple) else (found,)
        for tensor, value in zip(op.outputs, values, strict=False):
            self._values[tensor.name] = value

    def _emitted(self, op: Any) -> Any:
        if op.type in ("Placeholder", "PlaceholderWithDefault"):
            return self._input(op)
        if op.type in _VARIABLES:
            return self._variable(op)
        if op.type == "ReadVariableOp":
            return self._read(op)
        emitter = EMITTERS.get(op.type)
        if emitter is None:
            remedy = next((t for kind, t in _REMEDIES.items() if op.type.startswith(kind)), _OTHERS)
            raise UnsupportedOperator(f"it has no CIRH form: {remedy}")
        return emitter(self._emission, op, *map(self._value, op.inputs))

    def _input(self, op: Any) -> Value:
        if op.name not in self._inputs:
            raise UnsupportedOperator(
                "the input_fn does not give this placeholder: take what it gives as features and "
                "labels"
            )
        return self._inputs[op.name]

    def _read(self, op: Any) -> Value:
        """Return a variable's value: the next one after its assignment, which has no gradient."""
        writes, name = writes_before(op), op.inputs[0].op.name
        if not writes:
            return self._value(op.inputs[0])
        if len(writes) > 1 or writes[0].type not in ASSIGNMENTS:
            kinds = " and ".join(write.type for write in writes)
            raise UnsupportedOperator(f"it reads {name} after {kinds}: read it before them")
        value = self._next_value(writes[0])
        if depends_on_weights(value) and not self._is_assigning:
            raise UnsupportedOperator(
                f"the loss reads {name} after its assignment of a value that weights are trained "
                "through: read it before the assignment"
            )
        return value

    def _variable(self, op: Any) -> Value:
        variable = variables_by_operator(op.graph).get(op.name)
        if variable is None or not variable.dtype.is_floating:
            raise UnsupportedOperator(
                "the loss reads a variable that is not a weight of floats: make it a float32 "
                "variable, or a constant"
            )
        is_trained = variable.trainable if self._trained is None else op.name in self._trained
        scope, _, name = stored_name(op.name).rpartition("/")
        declare = self._tracer.parameter if is_trained else self._tracer.state
        self.variables[op.name] = variable
        with self._tracer.builder.in_scope(scope):
            return declare(name, tuple(variable.shape.as_list()), _ZEROS)

    @contextmanager
    def _located(self, op: Any) -> Iterator[None]:
        """Attribute operators and errors to the Python line that created the graph's operator.

        Raises: GraphError for unsupported operators
        """
        builder, line = self._tracer.builder, line_of(op)
        file, _, number = line.rpartition(":")
        place = FileLineColLoc(StringAttr(file), IntAttr(int(number)), IntAttr(0))
        before, builder.locate = builder.locate, lambda: place
        try:
            yield
        except (UnsupportedOperator, VerifyException) as error:
            raise refused(op, error) from error
        except GraphError:
            raise
        except TraceError as error:
            raise refused(op, str(error).removeprefix(f"{user_line()}: ")) from error
        finally:
            builder.locate = before
