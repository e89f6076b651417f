"""Backward passes of earlier recorded steps, reused in steps with the same forward pass.

A backward pass is a function of the forward operators and of the autograd graph over them. If both
equal those of an earlier step, and none of the user's Python runs in it, its operators are known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

import torch

from csrun.pytorch.record.geometry import Geometry
from csrun.pytorch.record.recording import GraphLeaf, RecordedOperator, Ref, TensorKind
from csrun.pytorch.record.reuse.autograd_graph import graph_of, have_hooks, runs_user_code
from csrun.pytorch.record.traced import TracedStorage, TracedTensor, ViewOf

MOST_KNOWN = 64  # graphs of a part of the loop


class _BackwardRecorder(Protocol):
    """The recorder, as used here.

    first_node: number of the first autograd node of the step.
    depth: number of PyTorch's dispatch modes.
    updates: operators of optimizers. has_updates: whether the step may have some.
    known: leaves by the id of a user's tensor.
    """

    operators: list[RecordedOperator]
    kinds: list[TensorKind]
    leaves: list[GraphLeaf]
    first_node: int
    depth: int
    updates: list[slice]
    has_updates: bool
    known: dict[int, TracedTensor]

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]: ...


@dataclass(frozen=True)
class CachedBackward:
    """Operators of a backward pass, values that they compute, and gradients by parameter.

    freed: views that PyTorch frees with the autograd graph. A pass that is repeated leaves them.
    """

    operators: tuple[RecordedOperator, ...]
    kinds: tuple[TensorKind, ...]
    gradients: tuple[tuple[str, Geometry, Ref, ViewOf | None], ...]
    freed: frozenset[Ref]

    def repeat(self, recorder: Any) -> None:
        """Record the pass, and set the parameters' gradients."""
        recorder.operators += self.operators
        recorder.kinds += self.kinds
        for name, like, value, view in self.gradients:
            memory = TracedStorage()
            gradient = TracedTensor(like, value, memory, recorder)
            gradient.view_of = view and view.of_step(memory, recorder)
            recorder.parameters[name].grad = gradient
        for tensor in _views_of(recorder) if self.freed else ():
            tensor.is_freed |= tensor.value in self.freed


class CachedBackwards:
    """Backward passes of one part of the loop, each known once its forward has occurred twice."""

    def __init__(self) -> None:
        # A key has ids of operators, so these must stay alive.
        self._known: dict[Hashable, tuple[list[RecordedOperator], CachedBackward | None]] = {}

    def run(
        self, recorder: _BackwardRecorder, loss: torch.Tensor, compute: Callable[[], None]
    ) -> CachedBackward | None:
        """Run a backward pass, or repeat the known one. compute: runs it in PyTorch.

        Returns it if it is known by then.
        """
        key = _key_of(recorder, loss)
        if key is None:
            compute()
            return None
        operators, known = self._known.get(key, (_forward_operators(recorder), None))
        if known is not None:
            known.repeat(recorder)
            return known
        if key in self._known:
            known = _observed(recorder, compute)
        else:
            compute()
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[key] = operators, known
        return known


def _key_of(recorder: _BackwardRecorder, loss: torch.Tensor) -> Hashable | None:
    """Return the key of a backward pass; None if it may depend on more."""
    parameters = recorder.parameters
    if torch._C._len_torch_dispatch_stack() != recorder.depth:  # a mode of the user's
        return None
    if have_hooks(parameters.values()) or any(p.is_meta for p in parameters.values()):
        return None  # Python cannot set the gradient of a parameter without memory
    if any(p.grad is not None for p in parameters.values()):
        return None  # it adds to gradients, as after another backward() of the step
    names = {id(parameter): name for name, parameter in parameters.items()}
    graph = graph_of(loss, recorder.first_node, names)
    if graph is None:
        return None
    settings = torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype()
    counts = len(recorder.operators), len(recorder.kinds)
    return tuple(map(id, _forward_operators(recorder))), counts, graph, settings


def _forward_operators(recorder: _BackwardRecorder) -> list[RecordedOperator]:
    """Return the operators that a backward pass may depend on.

    Operators of optimizers are excluded: their numbers differ in each step, and autograd is off
    there.
    """
    found = list(recorder.operators)
    for update in reversed(recorder.updates):
        del found[update]
    return found


def _observed(recorder: _BackwardRecorder, compute: Callable[[], None]) -> CachedBackward | None:
    """Run a backward pass and return its recording; None if a step cannot repeat it."""
    operators, kinds = len(recorder.operators), len(recorder.kinds)
    leaves = len(recorder.leaves)
    views = [(ref(tensor), tensor.value) for tensor in _views_of(recorder)]
    is_users = runs_user_code(compute)
    if is_users or len(recorder.leaves) != leaves:
        return None
    gradients: dict[str, Any] = {}
    for name, parameter in recorder.parameters.items():
        gradient = parameter.grad
        if gradient is None:
            continue
        if not isinstance(gradient, TracedTensor) or type(gradient.like) is not Geometry:
            return None
        if any(other.geometry != gradient.like for other in gradient.memory.tensors):
            return None
        gradients[name] = gradient
    if len({id(gradient.memory) for gradient in gradients.values()}) != len(gradients):
        return None
    return CachedBackward(
        tuple(recorder.operators[operators:]),
        tuple(recorder.kinds[kinds:]),
        tuple(
            (name, x.like, x.value, x.view_of and x.view_of.of_step(TracedStorage(), None))
            for name, x in gradients.items()
        ),
        frozenset(value for tensor, value in views if tensor() is None),
    )


def _views_of(recorder: _BackwardRecorder) -> Iterator[TracedTensor]:
    """Yield the views of weights that the step may write; none where it updates none."""
    for leaf in recorder.known.values() if recorder.has_updates else ():
        yield from (tensor for tensor in leaf.memory.tensors if tensor.view_of is not None)
