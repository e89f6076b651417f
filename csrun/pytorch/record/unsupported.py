"""Operators that cannot be recorded: data-dependent and random ones."""

from collections.abc import Sequence
from typing import Any

import torch

from csrun.pytorch.errors import CaptureError

_DATA_DEPENDENT_SHAPE = (
    "the shape of its result depends on the data, as with a boolean mask as an index: use "
    "torch.where, or multiply by the mask"
)
#: Reasons by PyTorch's tag of an operator.
_REASONS = {
    torch.Tag.dynamic_output_shape: _DATA_DEPENDENT_SHAPE,
    torch.Tag.data_dependent_output: (
        "the operator reads the values of its operands, which a traced step does not have: call "
        "it in the dataset, or on values that the loop has read"
    ),
}
DRAWS = torch.Tag.nondeterministic_seeded
#: Operators that a script uses through an option of PyTorch, and what to write instead.
_INSTEAD = {
    torch.ops.aten._nested_tensor_from_mask_left_aligned.default: (
        "nn.TransformerEncoder in eval() with src_key_padding_mask uses nested tensors: call "
        "torch.backends.mha.set_fastpath_enabled(False) before it"
    ),
    torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default: (
        "gradients are unscaled by a scaler of the script's own: use torch.amp.GradScaler or "
        "cbtorch.amp.GradScaler"
    ),
}

COMPUTES_WITH_DRAWS = (
    "{} computes with random numbers that it draws, or is not called from step 1 on: draw them by "
    "torch.rand and the like, and call it in each step"
)
NOT_DENSE = "a tensor is {}, only dense ones are supported: call to_dense()"
NOT_IN_MODEL = (
    "a tensor requires a gradient but is not a parameter of the model: register it with "
    "nn.Parameter; call a teacher under torch.no_grad()"
)
AFTER_ITS_STEP = (
    "the model is called on an earlier batch after optimizer.step(): call it before, or call "
    "copy.deepcopy(model), made here"
)
LATE_BACKWARD = (
    "backward() is called on a value of a finished step: call it once per batch, before "
    "optimizer.step() and before the loop takes another batch (streamers prefetch)"
)
EARLIER_STEP = (
    "a value of an earlier step is an input of this one, with its gradient: call .detach() on it, "
    "such as a hidden state, or read numbers with .item()"
)


class DataDependentError(CaptureError):
    """An operator's result or its shape depends on values, which the loop itself may read."""


def refusal_of(func: Any, given: Sequence[torch.Tensor], line: str) -> CaptureError | None:
    """Return the error for an operator on traced tensors; None if it can be recorded."""
    if func in _INSTEAD:
        return CaptureError(f"{line}: {_INSTEAD[func]}")
    if DRAWS in func.tags:
        return CaptureError(f"{line}: {COMPUTES_WITH_DRAWS.format(func)}")
    reason = next((text for tag, text in _REASONS.items() if tag in func.tags), None)
    if reason is None or _is_integer_index(func, given):
        return None
    return DataDependentError(f"{line}: {func}: {reason}")


def _is_integer_index(func: Any, given: Sequence[torch.Tensor]) -> bool:
    """True if an index only has integer tensors, which determine the result's shape."""
    truths = (torch.bool, torch.uint8)
    is_index = func is torch.ops.aten.index.Tensor
    return is_index and all(x.dtype not in truths for x in given[1:])
