"""Operators that no recording can have: what they give depends on numbers, or on chance."""

from collections.abc import Sequence
from typing import Any

import torch

from csrun.pytorch.capture.errors import CaptureError

_OF_NUMBERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_DRAWS = torch.Tag.nondeterministic_seeded


class OfNumbersError(CaptureError):
    """The shape of what an operator gives depends on numbers, which the loop itself may read."""


def refusal_of(func: Any, given: Sequence[torch.Tensor], line: str) -> CaptureError | None:
    """Why an operator on traced tensors cannot be recorded; None where it can."""
    if _DRAWS in func.tags:
        return CaptureError(
            f"{line}: {func} draws random numbers in a way that is not known here: use "
            "torch.nn.functional.dropout, or draw them in the dataset"
        )
    if _OF_NUMBERS.intersection(func.tags) and not _is_by_places(func, given):
        return OfNumbersError(
            f"{line}: {func}: the shape of its result depends on numbers, as with a boolean mask "
            "as an index: use torch.where or a product with the mask, which keep the shape"
        )
    return None


def refusal_of_constant(func: Any) -> str | None:
    """Why an operator that has nothing to do with the batch or the model must not run."""
    if _DRAWS not in func.tags:
        return None
    return (
        f"{func} draws random numbers in the step, which would be the same in each: draw "
        "them in the dataset, or use torch.nn.functional.dropout"
    )


def _is_by_places(func: Any, given: Sequence[torch.Tensor]) -> bool:
    """Whether an index is of places alone, which say the shape of what they give."""
    truths = (torch.bool, torch.uint8)
    is_index = func is torch.ops.aten.index.Tensor
    return is_index and all(x.dtype not in truths for x in given[1:])


def refusal_of_another(is_left: bool) -> str:
    """Why a tensor of another step is not recorded. is_left: nothing was done with that one."""
    if is_left:
        return (
            "a batch that was left for another one, as the first of zip(a, b) is: each step has "
            "the batch of one loader; have one of both data sets, as over "
            "torch.utils.data.StackDataset(a, b)"
        )
    return (
        "a tensor of an earlier step, of which a step can read numbers alone, not tensors "
        "(gradients that are accumulated over steps among them): use .item(), and call "
        "optimizer.zero_grad() in each step"
    )
