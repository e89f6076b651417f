"""Description of the autograd graph of a loss, for comparison with another step's."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import FrameType
from typing import Any
from weakref import ref

import torch
from torch.autograd.function import BackwardCFunction, _HookMixin

from csrun.pytorch.errors import is_users

#: Functions by which forward may make Python run in the backward pass, or read the graph itself.
WATCHING = frozenset(
    {
        torch.Tensor.register_hook,
        torch.Tensor.register_post_accumulate_grad_hook,
        torch.Tensor.retain_grad,
        torch.Tensor.grad_fn.__get__,
        torch.Tensor._backward_hooks.__get__,
        torch.Tensor._backward_hooks.__set__,
    }
)
_LEAF = torch._C._functions.AccumulateGrad

AutogradGraph = tuple[Any, ...]
_node_hooks: list[ref[Any]] = []  # tables of hooks of nodes that a loop has registered


def graph_of(loss: torch.Tensor, start: int, parameters: Mapping[int, str]) -> AutogradGraph | None:
    """Return kind, number and edges of each node that a loss depends on, in order of traversal.

    start: number of the first node of the step.
    parameters: names by id.

    None if a node runs the user's Python, such as a custom Function, or if a gradient flows to a
    tensor that is not a parameter.
    """
    nodes: list[Any] = [loss.grad_fn]
    if nodes[0] is None:
        return None
    numbers = {nodes[0]: 0}
    found: list[Any] = []
    for node in nodes:
        kind = type(node)
        if kind is _LEAF:
            name = parameters.get(id(node.variable))
            if name is None:
                return None
            found.append(name)
            continue
        if isinstance(node, BackwardCFunction) and not _is_of_composite(node):
            return None
        edges: list[int | None] = []
        for child, output in node.next_functions:
            if child is None:
                edges.append(None)
                continue
            number = numbers.setdefault(child, len(nodes))
            if number == len(nodes):
                nodes.append(child)
            edges += (number, output)
        found.append((kind, node._sequence_nr() - start, *edges))
    return tuple(found)


def _is_of_composite(node: Any) -> bool:
    """True for the node of a composite operator, whose options are those of the operator."""
    return bool(getattr(type(node)._forward_cls, "is_composite", False))


def watch_node_hooks() -> None:
    """Note the hooks of autograd nodes that the script registers from now on.

    PyTorch has no way to ask a node for them.
    """
    register = _HookMixin._register_hook
    if hasattr(register, "__wrapped__"):
        return

    @wraps(register)
    def registered(hooks: Any, hook: Any) -> Any:
        found, handle = register(hooks, hook)
        note_node_hooks(found)
        return found, handle

    _HookMixin._register_hook = staticmethod(registered)


def note_node_hooks(hooks: Any) -> None:
    """Note a table of hooks of an autograd node, such as that of a parameter's gradient."""
    _node_hooks[:] = [each for each in _node_hooks if each() is not None]
    if not is_of_node(hooks):
        _node_hooks.append(ref(hooks))


def forget_unreachable_hooks() -> None:
    """Free the nodes of unreachable graphs, whose hooks can no longer be called."""
    if any(each() for each in _node_hooks):
        gc.collect()


def is_of_node(hooks: Any) -> bool:
    """Return whether a table of hooks was noted as an autograd node's."""
    return any(each() is hooks for each in _node_hooks)


def have_hooks(parameters: Iterable[torch.Tensor]) -> bool:
    """Return whether a parameter, or a node of a loop, has a hook that a backward pass calls."""
    if any(each() for each in _node_hooks):
        return True
    return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters)


def are_saved_through_hooks() -> bool:
    """Return whether autograd currently saves tensors through hooks, such as those of
    checkpointing.
    """
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def runs_user_code(function: Callable[[], None]) -> bool:
    """Call a function, and return whether it has run the user's Python.

    True if another profiler is active.
    """
    if sys.getprofile() is not None:
        function()
        return True
    found: list[str] = []

    def find_users_call(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if file == "<string>":  # methods of a dataclass or NamedTuple
            file = frame.f_globals.get("__file__", "")
        if event == "call" and is_users(file):
            found.append(file)

    sys.setprofile(find_users_call)
    try:
        function()
    finally:
        sys.setprofile(None)
    return bool(found)
