"""Composite operator: a function recorded as one node, and its gradient as another.

The interpreter computes both with PyTorch: backward is autograd's through the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.traced import TracedTensor

if TYPE_CHECKING:
    from csrun.pytorch.record.recorder import StepRecorder

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class CompositeOp:
    """A function of tensors by position, and of options by keyword.

    draws: it draws a dropout mask, which the interpreter passes as `kept`.
    gradients: as `gradients_of` without its first argument; None for autograd's.
    """

    name: str
    compute: Callable[..., Any]
    draws: bool = False
    gradients: Callable[..., Tensors] | None = None

    @property
    def backward_name(self) -> str:
        """Name of the backward operator."""
        return f"{self.name}_backward"

    @cached_property
    def backward_call(self) -> Callable[..., Tensors]:
        """Function of the backward operator; one object, by which repeated calls are found."""
        return self.gradients or partial(gradients_of, self.compute)

    def record(self, recorder: StepRecorder, tensors: Sequence[Any], **options: Any) -> Any:
        """Record the function as one operator and return its traced results.

        Raises: CaptureError for dropout in the backward pass, which would draw another mask
        """
        draws = self.draws and options.get("dropout_p") != 0
        if draws and recorder.scopes.is_backward:
            raise recorder.refusal(
                "dropout is recomputed in the backward pass (torch.utils.checkpoint) and would "
                "draw another mask: move it out of the checkpoint"
            )
        return _CompositeFunction.apply(recorder, self, options, *tensors)


class _CompositeFunction(torch.autograd.Function):
    is_composite = True

    @staticmethod
    def forward(
        ctx: Any,
        recorder: StepRecorder,
        composite: CompositeOp,
        options: dict[str, Any],
        *tensors: Any,
    ) -> Any:
        traced = tuple(recorder.traced(t) if isinstance(t, torch.Tensor) else t for t in tensors)
        ctx.recorder, ctx.composite, ctx.options = recorder, composite, options
        ctx.number = len(recorder.operators)
        ctx.place = recorder.scopes.here
        # current values: a later write to one creates another value, which backward does not read
        ctx.save_for_backward(*(t.snapshot() if isinstance(t, TracedTensor) else t for t in traced))
        found = recorder.record(composite.name, composite.compute, traced, options)
        if isinstance(found, tuple):
            ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    def backward(ctx: Any, grad: Any, *unused: Any) -> Any:
        recorder, tensors, composite = ctx.recorder, ctx.saved_tensors, ctx.composite
        needs = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():  # of create_graph, which would miss this operator
            raise recorder.refusal(
                f"{composite.name.partition('::')[2]} has no second derivative in a Session: "
                "leave it out of what is differentiated twice"
            )
        before = recorder.scopes.set_place(ctx.place)
        try:
            found = recorder.record(
                composite.backward_name,
                composite.backward_call,
                (recorder.traced(grad), *tensors),
                {"needs": needs, **ctx.options},
                forward=ctx.number,
            )
        finally:
            recorder.scopes.set_place(before)
        each = iter(found)
        return (None, None, None, *(next(each) if need else None for need in needs))


def gradients_of(
    compute: Callable[..., Any],
    grad: torch.Tensor,
    *tensors: torch.Tensor | None,
    needs: Sequence[bool],
    **options: Any,
) -> Tensors:
    """Return the gradients of the tensors that need one, by autograd through the function."""
    with torch.enable_grad():
        leaves = [
            t.detach().requires_grad_() if need and t is not None else t
            for t, need in zip(tensors, needs, strict=True)
        ]
        out = compute(*leaves, **options)
        wanted = [t for t, need in zip(leaves, needs, strict=True) if need and t is not None]
        of = out[0] if isinstance(out, tuple) else out
        found: Tensors = call_for_user(torch.autograd.grad, (of, wanted, grad))
        return found
