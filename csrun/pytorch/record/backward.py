"""`loss.backward()` of a recorded step: its loss, its operators and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from csrun.pytorch.errors import CaptureError, call_for_user, user_line
from csrun.pytorch.record.recording import LeafSource, Ref
from csrun.pytorch.record.reuse.autograd_graph import have_hooks
from csrun.pytorch.record.traced import SharedValue, TracedTensor
from csrun.pytorch.record.unsupported import NOT_IN_MODEL

if TYPE_CHECKING:
    from csrun.pytorch.record.recorder import StepRecorder
    from csrun.pytorch.record.reuse.cached_backward import CachedBackward


@contextmanager
def backward_as_method() -> Iterator[None]:
    """Make `torch.autograd.backward([loss])` call `loss.backward()`, which a Session records."""
    original = torch.autograd.backward

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        one = tensors[0] if isinstance(tensors, list | tuple) and len(tensors) == 1 else tensors
        if _is_followed(one):
            one.backward(grad_tensors, *args, **kwargs)
        else:
            call_for_user(original, (tensors, grad_tensors, *args), kwargs)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original


def _is_followed(tensor: Any) -> bool:
    """True if a Session records backward() of a tensor: a value of its own, not recursively."""
    if isinstance(tensor, TracedTensor):
        recorder = tensor.recorder
        return recorder.is_finished or not recorder.backward.is_in_progress
    original = torch.Tensor.backward
    return isinstance(tensor, torch.Tensor) and type(tensor).backward != original


class RecordedBackward:
    """Backward pass of one recording, with the operators from `forward_end` to `end`.

    first_gradients: as left by backward(), by parameter.
    zeros: parameters whose gradient is still the zeros of zero_grad(set_to_none=False).
    require_cleared: raises if there are gradients unknown to PyTorch, and returns the names of zero
        ones.
    on_pass_end: called after each of several passes.
    is_watched: forward has set hooks of autograd, or read its graph.
    known: the pass, if it is that of earlier steps.
    """

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder
        self._loss: SharedValue | None = None  # the tensor would keep the autograd graph alive
        self.line = ""
        self.forward_end: int | None = None
        self.end = 0
        self.is_watched = False
        self.known: CachedBackward | None = None
        self.first_gradients: dict[str, Ref] = {}
        self.require_cleared: Callable[[], Collection[str]] = lambda: ()
        self.on_pass_end: Callable[[], None] = lambda: None
        self._zeros: dict[str, torch.Tensor] = {}
        self.zeros: list[str] = []

    def begun_again(self) -> RecordedBackward:
        """Return a new instance for recording the step again from its beginning."""
        made, zeros = RecordedBackward(self._recorder), frozenset(self._zeros)
        made.require_cleared = self.require_cleared if self._loss is None else lambda: zeros
        made.on_pass_end = self.on_pass_end
        return made

    @property
    def loss(self) -> Ref | None:
        """The value that backward() was called on."""
        return None if self._loss is None else self._loss.value

    @property
    def is_in_progress(self) -> bool:
        """True if PyTorch is computing gradients."""
        return self.forward_end is not None and not self.end

    def start(self, loss: torch.Tensor) -> None:
        """Begin when the loop calls `loss.backward()`.

        Raises: CaptureError for a second call, or gradients that were not cleared
        """
        if self._recorder.has_updates:
            self._start_one_of_many(loss)
            return
        if self._loss is not None:
            raise CaptureError(
                f"{user_line()}: backward() is called twice in this step, first in {self.line}: "
                "add the losses, and call backward() on the sum"
            )
        if loss.numel() != 1:
            raise CaptureError(
                f"{user_line()}: backward() needs one element, got a tensor of shape "
                f"{list(loss.shape)}: take its mean or sum"
            )
        if not loss.requires_grad:
            raise CaptureError(
                f"{user_line()}: backward() is called on a value without a gradient: compute it "
                "from the model's output of this step, and call .detach() on values of earlier "
                "steps, such as a hidden state"
            )
        cleared, parameters = set(self.require_cleared()), self._recorder.parameters
        if have_hooks(parameters.values()):
            self._recorder.note_varying("backward() calls a hook of a gradient")
        # in the parameters' order: a set's may differ when the step is compared again
        self._zeros = {name: x for name, x in parameters.items() if name in cleared}
        self._refuse_uncleared()
        self._loss, self.line = self._recorder.traced(loss).held, user_line()
        self.forward_end = len(self._recorder.operators)

    def _start_one_of_many(self, loss: torch.Tensor) -> None:
        """Begin one of several passes: the step's loss is their sum."""
        self.require_cleared()
        recorder, self.line = self._recorder, user_line()
        total = recorder.traced(loss.detach())
        with torch.no_grad():
            if total.shape != ():
                total = recorder.record(None, torch.ops.aten.sum.default, (total,), {})
            if self._loss is not None:
                before = recorder.trace_ref(self._loss.value)
                total = recorder.record(None, torch.ops.aten.add.Tensor, (before, total), {})
        self._loss = SharedValue(total.value)
        self.forward_end, self.end = len(recorder.operators), 0

    def finish(self) -> None:
        """Finish; restore zero gradients that nothing was added to."""
        if self._recorder.has_updates:
            self.end = len(self._recorder.operators)
            self.on_pass_end()
            return
        for name, parameter in self._zeros.items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
                self.zeros.append(name)
        self._record_constants()
        self.end = len(self._recorder.operators)
        self._refuse_foreign()
        self.first_gradients = {
            name: parameter.grad.value
            for name, parameter in self._recorder.parameters.items()
            if isinstance(parameter.grad, TracedTensor)
        }

    def _record_constants(self) -> None:
        """Record gradients that depend on no value of the step, such as zeros, as constants."""
        for parameter in self._recorder.parameters.values():
            if parameter.grad is not None and not isinstance(parameter.grad, TracedTensor):
                parameter.grad = self._recorder.traced(parameter.grad)

    def _refuse_uncleared(self) -> None:
        for name, parameter in self._recorder.parameters.items():
            grad = parameter.grad
            if grad is None:
                continue
            if isinstance(grad, TracedTensor) or bool(grad.any()):
                raise CaptureError(
                    f"{user_line()}: {name} already has a gradient, from outside the Session: "
                    "call optimizer.zero_grad() before the first backward()"
                )
            parameter.grad = None  # zeros, by zero_grad(set_to_none=False)
            self._zeros[name] = parameter

    def _refuse_foreign(self) -> None:
        """Raises: CaptureError for a gradient of a tensor outside the model and forward"""
        for tensor, leaf in self._recorder.plain.constants():
            if self._recorder.fresh.has(tensor):
                continue
            if tensor.is_leaf and isinstance(tensor.grad, TracedTensor):
                tensor.grad = None
                raise CaptureError(f"{leaf.name}: {NOT_IN_MODEL}")

    @property
    def gradients(self) -> dict[str, Ref]:
        """Current gradients of the parameters."""
        owned = self._recorder.parameters.items()
        return {n: p.grad.value for n, p in owned if isinstance(p.grad, TracedTensor)}

    def take_gradients(self) -> dict[str, Ref]:
        """Remove and return the parameters' gradients, after all edits.

        Raises: CaptureError for a gradient that is not of this step
        """
        found: dict[str, Ref] = {}
        # the remaining gradients are the loop's
        if self._loss is None or self._recorder.has_updates:
            return found
        for name, parameter in self._recorder.parameters.items():
            grad = parameter.grad
            if grad is None:
                continue
            if not isinstance(grad, TracedTensor) or grad.recorder is not self._recorder:
                raise CaptureError(
                    f"{user_line()}: the gradient of {name} is from an earlier backward(): call "
                    "optimizer.zero_grad() in each step"
                )
            found[name] = grad.value
            parameter.grad = None
        self._remove_from_buffers()
        return found

    def _remove_from_buffers(self) -> None:
        """Remove the gradients of buffers for which forward has set requires_grad."""
        stored = (x.tensor for x in self._recorder.leaves if x.source is LeafSource.BUFFER)
        for buffer in stored:
            if buffer.is_leaf and isinstance(buffer.grad, TracedTensor):
                buffer.grad = None
