"""Decomposition of operators without an emitter, by PyTorch's decompositions or csrun's.

A recording keeps the original operator, so that its interpreter computes PyTorch's bits.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from csrun.cirh.ops.loss import LogSoftmaxOp
from csrun.pytorch.decompositions import DECOMPOSITIONS
from csrun.pytorch.operators import EMITTED, Emission, emit_operator
from csrun.pytorch.operators.base import UNUSED, Unsupported
from csrun.pytorch.record.recording import RecordedOperator, Ref, TensorKind
from csrun.pytorch.record.torch_modes import unrecorded

_PRIMITIVES = {"prims.where.default": "aten.where.self"}
_SAME = frozenset({"aten.detach.default", "aten.alias.default", "aten.lift_fresh_copy.default"})


#: Losses whose emitters accept no weights, and the positions of these arguments.
_WEIGHTED = {
    "aten.nll_loss_forward.default": (2,),
    "aten.nll_loss_backward.default": (3,),
    "aten.binary_cross_entropy_with_logits.default": (2, 3),
}


#: Losses by label, and the position of the log-probabilities.
_LOG_PROBABILITIES = {"aten.nll_loss_forward.default": 0, "aten.nll_loss_backward.default": 1}


def has_weights(op: RecordedOperator) -> bool:
    """True if an operator is a loss with weights."""
    return any(
        isinstance(a, Ref) for n, a in enumerate(op.arguments) if n in _WEIGHTED.get(op.name, ())
    )


def is_of_parts(op: RecordedOperator, arguments: Sequence[Any]) -> bool:
    """True if an operator is a loss by label without a kernel: its log_softmax is never needed in
    full.
    """
    place = _LOG_PROBABILITIES.get(op.name)
    return place is not None and not isinstance(arguments[place].owner, LogSoftmaxOp)


def emit_decomposition(
    emission: Emission,
    op: RecordedOperator,
    value: Callable[[Ref], Any],
    kind: Callable[[Ref], TensorKind],
) -> tuple[Any, ...] | None:
    """Emit an operator's decomposition and return its results; None if PyTorch has none.

    value: returns an operand in CIRH.
    kind: returns its shape and type.

    Raises: Unsupported for a decomposition with an operator that has no emitter
    """
    table = _decompositions()
    if op.call not in table or torch.Tag.nondeterministic_seeded in getattr(op.call, "tags", ()):
        return None
    known = {c: f for c, f in table.items() if str(c) not in EMITTED or c is op.call}
    refs = [leaf for leaf in tree_leaves((op.arguments, dict(op.keywords))) if _is_ref(leaf)]
    try:
        graph = _graph(op, [kind(ref) for ref in refs], known)
    except Exception:  # errors of PyTorch, such as for operators that need values
        return None
    return _InlinedGraph(emission, graph).results([value(ref) for ref in refs])


@cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    from torch._decomp import decomposition_table  # slow import

    return {**decomposition_table, **DECOMPOSITIONS}


def _graph(
    op: RecordedOperator, kinds: Sequence[TensorKind], table: Mapping[Any, Any]
) -> GraphModule:
    """Trace an operator's decomposition as a function of its tensors, in order."""
    leaves, spec = tree_flatten((op.arguments, dict(op.keywords)))

    def call(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        filled = [next(given) if _is_ref(leaf) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(filled, spec)
        # of an operator with a Python kernel, PyTorch would not read the table
        return DECOMPOSITIONS.get(op.call, op.call)(*args, **kwargs)

    with unrecorded(), torch.no_grad(), FakeTensorMode():
        fakes = [torch.empty(k.shape, dtype=k.dtype) for k in kinds]
        return make_fx(call, decomposition_table=dict(table))(*fakes)


def _is_ref(leaf: Any) -> bool:
    return isinstance(leaf, Ref)


class _InlinedGraph:
    """Emission of a graph of ATen operators into a module."""

    def __init__(self, emission: Emission, graph: GraphModule) -> None:
        self._emission, self._graph = emission, graph
        self._values: dict[Node, Any] = {}
        self._constants: dict[Node, torch.Tensor] = {}  # values that depend on no operand

    def results(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Emit the graph for these operands and return its results."""
        given = iter(operands)
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = next(given)
            elif node.op == "get_attr":
                self._constants[node] = getattr(self._graph, node.target)
            elif node.op == "call_function":
                self._call(node)
            else:
                found = node.args[0]
                each = found if isinstance(found, tuple | list) else [found]
                return tuple(None if x is None else self._value(x) for x in each)
        raise AssertionError("a graph has an output")

    def _call(self, node: Node) -> None:
        if node.target is operator.getitem:
            found = self._constants if node.args[0] in self._constants else self._values
            found[node] = found[node.args[0]][node.args[1]]
            return
        if all(n in self._constants for n in node.all_input_nodes):
            args, kwargs = tree_map(self._constant, (node.args, dict(node.kwargs)))
            with unrecorded(), torch.no_grad():
                self._constants[node] = node.target(*args, **kwargs)
            return
        name = _PRIMITIVES.get(str(node.target), str(node.target))
        options = {key: given for key, given in node.kwargs.items() if key not in UNUSED}
        args, kwargs = tree_map(self._argument, (node.args, options))
        if name in _SAME:
            self._values[node] = args[0]
            return
        if name not in EMITTED:
            raise Unsupported(
                f"PyTorch decomposes it into {name}, which is not supported: rewrite the line with "
                "other operators"
            )
        kinds = [x for x in tree_leaves(node.meta["val"]) if isinstance(x, torch.Tensor)]
        self._emission.kinds = tuple(TensorKind(tuple(x.shape), x.dtype) for x in kinds)
        self._values[node] = emit_operator(self._emission, name, args, kwargs)

    def _argument(self, argument: Any) -> Any:
        return self._value(argument) if isinstance(argument, Node) else argument

    def _value(self, node: Any) -> Any:
        if node not in self._values:
            self._values[node] = self._emission.array(self._constants[node])
        return self._values[node]

    def _constant(self, argument: Any) -> Any:
        return self._constants[argument] if isinstance(argument, Node) else argument
