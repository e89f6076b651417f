"""Lazy evaluation on the host of the loop's computations on values of steps.

Only computations that step 1 did not make are evaluated here. Arguments are copied at the call, so
later writes of the loop do not change them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from csrun.base.errors import UsageError
from csrun.data.adapters.torch_batches import on_one_thread
from csrun.pytorch.errors import call_for_user, user_line
from csrun.pytorch.loop.result_shapes import ResultShape, result_shapes
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.loop_calls import name_of
from csrun.pytorch.step.loop_writes import is_write
from csrun.pytorch.step.step_outputs import Owner, StepValue
from csrun.pytorch.step.tokens import LazyTensor, Token, tensor_of


class Computation:
    """Call of a function on values of steps and results of other computations.

    results: its tensors, flat, once computed.
    has_gradients: autograd records it.
    takes_weights: a tensor among its arguments is computed from weights, which its copy does not
        track.
    """

    __slots__ = (
        "__weakref__",
        "_args",
        "_func",
        "_kwargs",
        "has_gradients",
        "is_settled",
        "owner",
        "results",
        "takes_weights",
    )

    def __init__(self, owner: Owner, func: Any, args: Any, kwargs: Any) -> None:
        self.owner, self._func = owner, func
        self._args, self._kwargs = tree_map(_as_it_is, (args, dict(kwargs)))
        self.results: list[Any] | None = None
        self.is_settled, self.has_gradients = False, torch.is_grad_enabled()
        plain = (x for x in leaves_of(args, kwargs) if isinstance(x, torch.Tensor))
        self.takes_weights = any(x.requires_grad for x in plain if not isinstance(x, LazyTensor))
        for leaf in self._leaves():
            if isinstance(leaf, StepValue) and not leaf.step.status.has_values:
                leaf.step.waiting += (ref(self),)
        if self.is_of_recorded:
            owner.readback.settle_later(self)

    def _leaves(self) -> list[Any]:
        return list(tree_leaves((self._args, self._kwargs)))

    def _needs(self) -> Iterator["Computation"]:
        """Yield the computations among its arguments without results."""
        for leaf in self._leaves():
            if isinstance(leaf, Result) and leaf.of.results is None:
                yield leaf.of

    def places(self) -> list[StepValue]:
        """Return all values of steps that it depends on."""
        found: list[StepValue] = []
        waiting, seen = [self], {id(self)}
        while waiting:
            each = waiting.pop()
            found += [leaf for leaf in each._leaves() if isinstance(leaf, StepValue)]
            new = [c for c in each._needs() if id(c) not in seen]
            seen.update(map(id, new))
            waiting += new
        return found

    def sources(self) -> list[Any]:
        """Return values of steps that it depends on, and settled computations."""
        found: list[Any] = []
        waiting: list[Computation] = [self]
        while waiting:
            each = waiting.pop()
            found += [each] * each.is_settled
            leaves = each._leaves()
            found += [leaf for leaf in leaves if isinstance(leaf, StepValue | TracedTensor)]
            waiting += [leaf.of for leaf in leaves if isinstance(leaf, Result)]
        return found

    def own_places(self) -> list[StepValue]:
        """Return the values of steps among its own arguments."""
        return [leaf for leaf in self._leaves() if isinstance(leaf, StepValue)]

    @property
    def is_ready(self) -> bool:
        """True if all of its arguments are known."""
        if any(
            isinstance(leaf, TracedTensor) and not leaf.recorder.is_finished
            for leaf in self._leaves()
        ):
            return False
        return all(p.is_known for p in self.own_places()) and next(self._needs(), None) is None

    @property
    def is_of_recorded(self) -> bool:
        """True if values of recorded steps are among its arguments."""
        return any(isinstance(leaf, TracedTensor) for leaf in self._leaves())

    def settle(self) -> None:
        """Replace values of finished recorded steps by their numbers."""
        self.is_settled = True
        self._args, self._kwargs = tree_map(_settled, (self._args, self._kwargs))

    def compute(self) -> list[Any]:
        """Return its results. A sum over many steps is computed without recursion."""
        if self.results is not None:
            return self.results
        self.owner.readback.want(self.places())
        waiting = [self]
        # Not calls of a step that is being recorded. Sums must not depend on a task's CPUs.
        with torch._C.DisableTorchFunction(), on_one_thread():
            while waiting:
                if more := list(waiting[-1]._needs()):
                    waiting += more
                    continue
                last = waiting.pop()
                if last.results is None:  # referenced by two others
                    last._compute()
        assert self.results is not None, "computed"
        return self.results

    def _compute(self) -> None:
        args, kwargs = tree_map(self._number, (self._args, self._kwargs))
        with torch.no_grad(), unrecorded():
            self.results = list(tree_leaves(call_for_user(self._func, args, kwargs)))
        self._args, self._kwargs = (), {}

    def call_again(self, value: Callable[[Any], Any]) -> list[Any]:
        """Return the results of its function on other values of its arguments.

        Raises: UsageError if gradients would be lost
        """
        if self.results is not None:
            return self.results
        if self.takes_weights and self.has_gradients:
            raise UsageError(
                f"{user_line()}: the loss takes weights outside of forward, and did not in step 1: "
                "use them in forward, or call cbtorch.initialize(fast=False)"
            )
        args, kwargs = tree_map(lambda x: self._carried(value(x)), (self._args, self._kwargs))
        with torch.set_grad_enabled(self.has_gradients):
            return list(tree_leaves(call_for_user(self._func, args, kwargs)))

    def _carried(self, leaf: Any) -> Any:
        """Return the numbers of a detached value of an earlier step; other values unchanged."""
        return self._number(leaf) if isinstance(leaf, StepValue) and leaf.is_detached else leaf

    def _number(self, leaf: Any) -> Any:
        if isinstance(leaf, StepValue):
            return self.owner.readback.read(leaf.step, leaf.slot)
        if isinstance(leaf, Result):
            assert leaf.of.results is not None, "computed before"
            return leaf.of.results[leaf.number]
        return tensor_of(leaf)


class Result:
    """One tensor of a computation's results.

    is_shared: other results may be views of it.
    viewed: views of weights that it is a view of.
    is_detached: no gradient flows through it.
    """

    __slots__ = ("is_detached", "is_shared", "number", "of", "viewed")

    def __init__(
        self,
        of: Computation,
        number: int,
        is_shared: bool = False,
        viewed: tuple[StepValue, ...] = (),
        is_detached: bool = False,
    ) -> None:
        self.of, self.number, self.is_shared, self.viewed = of, number, is_shared, viewed
        self.is_detached = is_detached

    def detached(self) -> "Result":
        """Return the same value without autograd."""
        return Result(self.of, self.number, self.is_shared, self.viewed, True)

    def numbers(self) -> Any:
        """Its numbers."""
        return self.of.compute()[self.number]


class LazyResult(LazyTensor):
    """Lazy tensor of a result. is_detached: no gradient flows through it."""

    is_detached: bool
    _held: list[Result]  # shared by all tensors that are detached from it

    @staticmethod
    def __new__(
        cls: type["LazyResult"],
        owner: Owner,
        held: list[Result],
        meta: torch.Tensor,
        is_detached: bool = False,
    ) -> "LazyResult":
        made: LazyResult = torch.Tensor._make_wrapper_subclass(cls, meta.size(), dtype=meta.dtype)
        made._owner, made._held, made.is_detached = owner, held, is_detached
        return made

    @property
    def result(self) -> Result:
        """Its current result."""
        return self._held[0]

    @result.setter
    def result(self, given: Result) -> None:
        self._held[0] = given

    @property
    def viewed(self) -> tuple[StepValue, ...]:
        """Return `viewed` of the result."""
        return self.result.viewed

    def tensor(self) -> Any:
        """The numbers."""
        if self.viewed:
            self._owner.readback.require_current(self.viewed)
        return self.result.numbers()

    def detach(self) -> "LazyResult":
        """Return the detached value; a write into either is visible in both."""
        return (
            self
            if self.is_detached
            else LazyResult(self._owner, self._held, self, is_detached=True)
        )


def _as_it_is(argument: Any) -> Any:
    """Return an argument that later writes of the loop do not change."""
    if isinstance(argument, LazyResult):
        return argument.result.detached() if argument.is_detached else argument.result
    if isinstance(argument, TracedTensor) and argument.became is not None:
        became = argument.became
        return became.clone() if isinstance(became, torch.Tensor) else became
    if isinstance(argument, Token):
        return argument.in_step if argument.written is None else argument.written
    if type(argument) is torch.Tensor or isinstance(argument, torch.nn.Parameter):
        return argument.detach().clone()
    return argument.copy() if isinstance(argument, np.ndarray) else argument


def later(
    owner: Owner,
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    at_once: Callable[..., Any] | None = None,
) -> Any:
    """Return the lazy results of a function.

    They are computed at once if their shapes depend on values, or if the function draws random
    numbers, since the generator state may change. at_once: used in place of `now`.

    Raises: UsageError for a write into a value of a step
    """
    if is_write(func):
        return _written(owner, func, args, kwargs)
    viewed = _viewed(owner, args, kwargs)
    with torch._C.DisableTorchFunction():  # not calls of a step that is being recorded
        shapes = result_shapes(func, args, kwargs)
        if shapes is not None:
            return _lazy(owner, func, args, kwargs, shapes, viewed)
    return at_once(func, args, kwargs) if at_once else now(owner, func, args, kwargs)


def _lazy(
    owner: Owner,
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    shapes: tuple[TreeSpec, list[ResultShape]],
    viewed: tuple[StepValue, ...],
) -> Any:
    """Return the lazy results of a function, of known shapes."""
    spec, leaves = shapes
    made = Computation(owner, func, args, kwargs)
    shared = any(leaf.is_view for leaf in leaves)
    if shared:
        for leaf in leaves_of(args, kwargs):
            if isinstance(leaf, LazyResult):
                leaf.result.is_shared = True
            elif isinstance(leaf, Token) and leaf.slot.is_loss:
                leaf.step.has_loss_views = True
    results = [
        LazyResult(owner, [Result(made, n, shared, viewed if m.is_view else ())], m.tensor)
        for n, m in enumerate(leaves)
    ]
    return tree_unflatten(results, spec)


def _viewed(
    owner: Owner, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[StepValue, ...]:
    """Return the views of weights among the arguments.

    Raises: UsageError for a view whose weight the optimizer has changed
    """
    found = tuple(
        place
        for leaf in leaves_of(args, kwargs)
        if isinstance(leaf, LazyTensor)
        for place in leaf.viewed
    )
    if found:
        owner.readback.require_current(found)
    return found


def now(owner: Owner, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the results of a function, computed at once."""
    given = Computation(owner, _given, (args, dict(kwargs)), {})
    flat, spec = tree_flatten((args, dict(kwargs)))
    numbers = given.compute()
    own = [
        b if isinstance(a, LazyTensor | TracedTensor) else a
        for a, b in zip(flat, numbers, strict=True)
    ]
    args, kwargs = tree_unflatten(own, spec)
    with torch.no_grad():
        return call_for_user(func, args, kwargs)


def _given(*arguments: Any) -> Any:
    return arguments


def _written(owner: Owner, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Replace a lazy tensor that the loop writes by the value after the write."""
    target = args[0]
    if isinstance(target, TracedTensor):
        if isinstance(target.became, torch.Tensor):
            now(owner, func, (target.became, *args[1:]), kwargs)
            return target
        target.rebind(Result(Computation(owner, _on_a_copy(func), args, kwargs), 0))
        return target
    if _is_final_loss(target):
        result = Result(Computation(owner, _on_a_copy(func), args, kwargs), 0)
        target.step.written_loss = result
        return target
    if not isinstance(target, LazyResult) or target.result.is_shared:
        raise UsageError(
            f"{user_line()}: {name_of(func)}_ writes into a value of the step, or into a view of "
            "one: write x = x * 2 in place of x *= 2"
        )
    target.result = Result(Computation(owner, _on_a_copy(func), args, kwargs), 0)
    return target


def _is_final_loss(target: Any) -> bool:
    """True for the loss of a step that is over, without views."""
    if not isinstance(target, Token) or not target.slot.is_loss:
        return False
    return target.step.status.is_over and not target.step.has_loss_views


def _settled(leaf: Any) -> Any:
    return tensor_of(leaf) if isinstance(leaf, TracedTensor) and leaf.recorder.is_finished else leaf


def _on_a_copy(func: Any) -> Callable[..., Any]:
    def on_a_copy(target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        target = target.clone()
        func(target, *args, **kwargs)
        return target

    return on_a_copy
