"""Calls that step 1 makes between its batch and `optimizer.step()`, noted for later steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_leaves, tree_map

from csrun.base.errors import UsageError
from csrun.pytorch.errors import call_for_user, user_line
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.draws import Draw
from csrun.pytorch.record.functions.ctc_loss import with_padded_targets
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.reuse.call_matcher import CallMatcher, UnknownCalls
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.record.unsupported import DataDependentError
from csrun.pytorch.step.loop_writes import UntrackedWrites, is_write, result_of, writes_outside
from csrun.pytorch.step.snapshots import PLAIN, Snapshot
from csrun.pytorch.step.tokens import COMPUTED, LazyTensor, Token

MODEL = "the model"
BACKWARD, UPDATE = "backward()", "optimizer.step()"  # in a step with its own updates
#: Types of values of a step: made once, as a union is made anew each time it is written.
_VALUES = (TracedTensor, Token)
_HOOKS = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
_GET_GRAD = torch.Tensor.grad.__get__
#: Names of one function: as an operator, as a method, and in place.
_ALIASES = {"truediv": "div", "radd": "add", "rmul": "mul", "rtruediv": "rdiv", "iadd": "add"}


@lru_cache(maxsize=1024)
def name_of(func: Any) -> str:
    """Return the name by which calls are compared."""
    plain = str(getattr(func, "__name__", func)).strip("_")
    if plain == "get":  # of a property
        plain = str(func.__self__.__name__)
    return _ALIASES.get(plain, plain)


@dataclass(frozen=True, eq=False)
class Call:
    """A call of step 1 whose results are traced.

    operands: a Ref for each traced argument, a Snapshot for each tensor of the loop's own.
    how: names of keywords; for the model also the modes of its modules and the state of its guards.
    spec: structure of the model's arguments.
    gradients: `gradients_of` its arguments.
    differentiable: results that have gradients.
    strides: those of results that are not contiguous.
    writes: it writes its first argument.
    draws: random numbers that forward draws.
    scope: module that the loop calls, if it calls submodules of the model directly.
    operators: of an optimizer's step in the recording.
    """

    name: str
    operands: tuple[Any, ...]
    results: Any
    how: tuple[Any, ...] = ()
    spec: TreeSpec | None = None
    gradients: tuple[bool, ...] | None = None
    differentiable: tuple[Any, ...] = ()
    strides: tuple[tuple[Ref, tuple[int, ...]], ...] = ()
    writes: bool = False
    draws: tuple[Draw, ...] = ()
    scope: str | None = None
    operators: slice | None = None

    @cached_property
    def made(self) -> tuple[str, tuple[Ref, ...]]:
        """Its name and the values that it returns."""
        return self.name, tuple(leaf for leaf in tree_leaves(self.results) if isinstance(leaf, Ref))


def gradients_of(leaves: list[Any]) -> tuple[bool, ...]:
    """Return whether autograd is on, and which argument values it tracks."""
    found = [torch.is_grad_enabled()]
    with torch._C.DisableTorchFunctionSubclass():  # calls of LazyTensor take much longer
        for leaf in leaves:
            if isinstance(leaf, _VALUES):
                found.append(leaf.requires_grad)
    return tuple(found)


def _hooks_parameter(func: Any, args: tuple[Any, ...]) -> bool:
    """True for a hook on a parameter, which is none of a step's calls: it stays for later steps."""
    return func in _HOOKS and isinstance(args[0], torch.nn.Parameter)


def carried(value: Any) -> Any:
    """Return the numbers of a detached value of an earlier step; others unchanged."""
    if not isinstance(value, TracedTensor | LazyTensor) or value.requires_grad:
        return value
    with unrecorded():
        return (value.tensor() if isinstance(value, LazyTensor) else value.numbers()).clone()


class Calls(TorchFunctionMode):
    """Mode that records the loop's calls of PyTorch's functions, except inside of the model.

    later: returns the lazy result of a function of values of earlier steps.
    traced: replaces tokens by traced tensors, in a step that began on tokens.
    untracked: writes into metrics of the loop.
    has_checked_gradients: the loop has looked at a gradient before `backward()`.
    """

    def __init__(self, recorder: StepRecorder, later: Callable[..., Any]) -> None:
        super().__init__()
        self.later = later
        self.found: list[Call] = []
        self.depth = 0  # of calls of the model
        self.traced: Callable[[Any], Any] | None = None
        self.takes_arguments = recorder.takes_arguments
        self.untracked = UntrackedWrites()
        self.has_checked_gradients = False
        self._recorder = recorder
        self._followed: CallMatcher | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Handle a call of a PyTorch function."""
        kwargs = kwargs or {}
        if func == _GET_GRAD and not self._recorder.has_loss:
            self.has_checked_gradients = True
        if self._recorder.is_finished or _hooks_parameter(func, args):
            return call_for_user(func, args, kwargs)
        if self._followed is not None:
            return self._followed.call(func, args, kwargs)
        return self._record(func, args, kwargs)

    def follow(self) -> CallMatcher:
        """Follow the calls of earlier steps."""
        making = UnknownCalls(self._record, self.found, lambda: self.depth > 0, self._within_model)
        self._followed = self._recorder.follow(making)
        return self._followed

    def end(self) -> None:
        """Drop all references to traced tensors."""
        self._followed = self.traced = None

    @contextmanager
    def _within_model(self, is_within: bool) -> Iterator[None]:
        before, self.depth = self.depth, int(is_within)
        try:
            yield
        finally:
            self.depth = before

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if self.depth:
            return call_for_user(func, args, kwargs)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise UsageError(
                f"{user_line()}: torch.func's grad and vmap in the loop are not supported: call "
                "them in forward, or call backward() on the loss"
            )
        if self.traced is not None:
            args, kwargs = self.traced((args, kwargs))
        func, args, kwargs = with_padded_targets(func, args, kwargs)
        leaves = leaves_of(args, kwargs)
        if func is torch.Tensor.register_hook:
            raise UsageError(
                f"{user_line()}: a hook on a value of the loop would run in the first steps only: "
                "register it on the value in forward, or write a torch.autograd.Function"
            )
        if any(map(self._is_earlier, leaves)) and (
            self._may_lead_to_loss(leaves) or self._writes_own(func, args)
        ):
            args, kwargs = self.carried((args, kwargs))
            leaves = leaves_of(args, kwargs)
        if any(isinstance(a, TracedTensor) and self._is_earlier(a) for a in leaves):
            return self.later(func, args, kwargs)
        if self._writes_loops(func, args) and any(isinstance(a, TracedTensor) for a in leaves):
            if not self._may_lead_to_loss(leaves):
                return self._on_numbers(func, args, kwargs)
            if not self._is_taken(args[0]):
                self.untracked.note(args[0])
                return self._on_numbers(func, args, kwargs)
            self._recorder.note_varying("the loop computes its loss in a tensor that it creates")
        with torch._C.DisableTorchFunction():  # csrun's own reads of tensors are not calls
            if any(isinstance(a, TracedTensor) for a in leaves):
                args, kwargs = self.with_inputs((args, kwargs))
            operands, gradients = self.operands(args, kwargs), gradients_of(leaves)
        is_backward = func is torch.Tensor.backward  # which may run parts of forward again
        if is_backward:
            self.untracked.require_none(leaves)
        try:
            with self._recorder.host.off(not is_backward):
                results = call_for_user(func, args, kwargs)
        except DataDependentError:
            if is_backward:
                raise
            if not self._may_lead_to_loss(leaves) and not self._is_of_batch(leaves):
                return self._on_numbers(func, args, kwargs)
            results = call_for_user(func, args, kwargs)
        self.untracked.check(func, leaves, results)
        results = self._of_created(leaves, results)
        if getattr(func, "__name__", "") != "__get__" or func.__self__.__name__ in COMPUTED:
            how = tuple(kwargs)
            with torch._C.DisableTorchFunction():
                name, writes = name_of(func), is_write(func)
                made = result_of(func, args, results)
                self.note(name, operands, made, how, gradients, writes=writes)
        return results

    def carried(self, tree: Any) -> Any:
        """Replace detached values of earlier steps in arguments by numbers."""
        return tree_map(lambda x: carried(x) if self._is_earlier(x) else x, tree)

    def _is_earlier(self, value: Any) -> bool:
        """True if a value belongs to a finished step."""
        if isinstance(value, TracedTensor):
            return value.recorder is not self._recorder
        return isinstance(value, LazyTensor)

    def with_inputs(self, tree: Any) -> Any:
        """Replace the script's tensors that are inputs of the step in arguments by traced tensors;
        others unchanged if tensors of the script are constants.
        """
        return tree_map(self._recorder.plain.as_input, tree) if self.takes_arguments else tree

    def _writes_own(self, func: Any, args: tuple[Any, ...]) -> bool:
        """True if a function writes into a value of this step, such as a gradient, or into a weight
        in a step that has the updates.
        """
        recorder = self._recorder
        return is_write(func) and any(
            not self._is_earlier(x)
            and (isinstance(x, TracedTensor) or (recorder.has_updates and recorder.is_owned(x)))
            for x in tree_leaves(args[:1])
            if isinstance(x, torch.Tensor)
        )

    def take(self, target: torch.Tensor) -> None:
        """Note a tensor that the loop has created in this step, before it was recorded."""
        self._recorder.plain.note_varying(target)
        self._recorder.fresh.note_of_loop(target)

    def _is_taken(self, target: torch.Tensor) -> bool:
        """Convert a tensor that the loop writes before its loss, as after `loss = torch.zeros(())`.

        False if it may be older than the step, as a metric is.
        """
        fresh = self._recorder.fresh
        if self.takes_arguments and not target.requires_grad and not fresh.has(target):
            self.take(target)
        return fresh.has(target) and fresh.take(target)

    def _of_created(self, leaves: list[Any], results: Any) -> Any:
        """Return results of a call; traced ones of a tensor that the loop has created."""
        fresh = self._recorder.fresh
        if type(results) is not torch.Tensor or results.requires_grad != fresh.is_taken(results):
            return results
        fresh.note_of_loop(results, leaves)
        return fresh.resolve(results)

    def _writes_loops(self, func: Any, args: tuple[Any, ...]) -> bool:
        """True if a function writes a tensor of the loop that the step does not write, such as a
        metric's, unlike an optimizer's state in a step that has the updates.
        """
        recorder = self._recorder
        return writes_outside(func, args) and not (
            recorder.has_updates and recorder.is_owned(args[0])
        )

    def _may_lead_to_loss(self, leaves: list[Any]) -> bool:
        recorder = self._recorder
        is_before = torch.is_grad_enabled() and (recorder.has_updates or not recorder.has_loss)
        return is_before and any(isinstance(a, torch.Tensor) and a.requires_grad for a in leaves)

    def _is_of_batch(self, leaves: list[Any]) -> bool:
        """True if a call before the loss only depends on the batch."""
        is_before = torch.is_grad_enabled() and not self._recorder.has_loss
        return is_before and self._recorder.host.are_of_batch(leaves)

    def _on_numbers(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Make a call on numbers: one that adds to a tensor of the loop's own, or whose result has
        a shape that depends on values.
        """
        read = self._recorder.read
        args, kwargs = tree_map(
            lambda a: read(a) if isinstance(a, TracedTensor) else a, (args, kwargs)
        )
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            return call_for_user(func, args, kwargs)

    def note(
        self,
        name: str,
        operands: tuple[Any, ...],
        results: Any,
        how: tuple[Any, ...],
        gradients: tuple[bool, ...],
        spec: TreeSpec | None = None,
        writes: bool = False,
        draws: tuple[Draw, ...] = (),
    ) -> None:
        """Record a call if any of its results is traced."""
        if traced := [r for r in tree_leaves(results) if isinstance(r, TracedTensor)]:
            with torch._C.DisableTorchFunction():
                followed = tuple(r.value for r in traced if r.requires_grad)
                strides = tuple((r.value, r.stride()) for r in traced if not r.is_contiguous())
            refs = tree_map(self._ref, results)
            scope = self._recorder.scopes.module
            self.found.append(
                Call(
                    name, operands, refs, how, spec, gradients, followed, strides, writes, draws,
                    scope,
                )
            )  # fmt: skip

    def operands(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Return the flat arguments of a call, before the call."""
        return tuple(map(self._operand, leaves_of(args, kwargs)))

    def _operand(self, value: Any) -> Any:
        is_weight = isinstance(value, torch.nn.Parameter) and self._recorder.is_owned(value)
        if type(value) in PLAIN and not is_weight:
            if name := self._recorder.name_of(value):
                return Snapshot(value, name)
            with unrecorded():
                return Snapshot(value, numbers=self._recorder.plain.numbers_of(value))
        return self._ref(value)

    def _ref(self, value: Any) -> Any:
        return value.value if isinstance(value, TracedTensor) else value
