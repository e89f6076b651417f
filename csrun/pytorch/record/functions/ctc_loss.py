"""ctc_loss, recorded as one operator with padded targets and tensors of lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.functions.composite import CompositeOp, Tensors, gradients_of

if TYPE_CHECKING:
    from csrun.pytorch.record.recorder import StepRecorder

_FUNCTION = functional.ctc_loss  # the name is patched while a step is recorded
_SIGNATURE = signature(_FUNCTION)
_SEQUENCES = "log_probs", "targets", "input_lengths", "target_lengths"
LEAST = 16  # multiple to which targets of the script are padded


def _ctc_loss(log_probs: Any, *others: Any, **options: Any) -> torch.Tensor:
    """Shapes: log_probs [T, N, C], targets [N, S], lengths [N] -> [N]"""
    if isinstance(log_probs, FakeTensor):  # PyTorch's operator reads lengths for a second result
        return log_probs.new_empty(log_probs.shape[1])
    return call_for_user(
        functional.ctc_loss, (log_probs, *others), {**options, "reduction": "none"}
    )


def _ctc_loss_backward(grad: Any, log_probs: Any, *others: Any, **options: Any) -> Tensors:
    if isinstance(log_probs, FakeTensor):
        return (torch.empty_like(log_probs, memory_format=torch.contiguous_format),)
    return gradients_of(_ctc_loss, grad, log_probs, *others, **options)


CTC_LOSS = CompositeOp("csrun::ctc_loss", _ctc_loss, gradients=_ctc_loss_backward)


def record_ctc_loss(recorder: StepRecorder, *args: Any, **kwargs: Any) -> Any:
    """Record ctc_loss; a mix of a tensor and a list as lengths is left to PyTorch, which refuses
    it.

    Shapes: log_probs [T, N, C] or [T, C], targets [N, S] or concatenated, lengths [N] or []
    """
    sequences, options = _split(args, kwargs)
    if not all(isinstance(each, torch.Tensor) for each in sequences):
        return NotImplemented
    log_probs, targets, *given = sequences
    if targets.is_floating_point():  # as Keras casts all labels
        targets = targets.to(torch.int64)
    is_batched = log_probs.dim() > 2
    log_probs = log_probs if is_batched else log_probs.unsqueeze(1)
    input_lengths, target_lengths = (each if each.dim() else each.reshape(1) for each in given)
    if targets.dim() == 1:
        targets = _by_sample(recorder, recorder.traced(targets), target_lengths)
    loss = CTC_LOSS.record(
        recorder,
        (log_probs, targets, input_lengths, target_lengths),
        blank=int(options.get("blank", 0)),
        zero_infinity=bool(options.get("zero_infinity", False)),
    )
    match options.get("reduction", "mean"):
        case "mean":
            return (loss / target_lengths.clamp_min(1)).mean()
        case "sum":
            return loss.sum()
        case "none":
            return loss if is_batched else loss.squeeze(0)
    return NotImplemented


def _by_sample(recorder: StepRecorder, targets: Any, lengths: Any) -> Any:
    """Convert concatenated targets to padded ones; the longest may be all of them.

    Shapes: targets [sum of lengths], lengths [N] -> [N, longest]
    """
    longest = len(targets)
    if _is_plain(lengths):
        if lengths.sum() != len(targets):
            raise recorder.refusal(
                f"ctc_loss takes as many labels as target_lengths add up to, {lengths.sum()}, got "
                f"{len(targets)}"
            )
        longest = _longest(lengths)
    starts = lengths.cumsum(0) - lengths
    places = starts[:, None] + torch.arange(longest)
    return targets[places.clamp_max(len(targets) - 1)]


@lru_cache(maxsize=1024)
def is_ctc_loss(func: Any) -> bool:
    """True for PyTorch's function, wrapped or not."""
    return getattr(func, "__wrapped__", func) is _FUNCTION


def with_padded_targets(func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Return a call of the loop, with the loop's own targets padded if it is ctc_loss.

    Targets are padded to a power of two, so batches with other lengths usually have tensors of the
    same shapes. Invalid arguments are left unchanged.

    Raises: TypeError for arguments that ctc_loss does not have
    """
    if not is_ctc_loss(func):
        return func, args, kwargs
    (log_probs, targets, *lengths), options = _split(args, kwargs)
    if _is_plain(targets) and _is_plain(lengths[1]):
        targets = _padded(targets, lengths[1].reshape(-1))
    return ctc_loss, (log_probs, targets, *lengths), options


def ctc_loss(log_probs: Any, *others: Any, **options: Any) -> Any:
    """PyTorch's function, which has no shape rule, also for tensors without values."""
    if log_probs.is_meta:
        each = log_probs.new_empty(log_probs.shape[1:-1])
        return each if options.get("reduction") == "none" else each.sum()
    return functional.ctc_loss(log_probs, *others, **options)


def _split(args: Any, kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the four sequences of a call, lists of lengths as tensors, and its options."""
    given = dict(_SIGNATURE.bind(*args, **kwargs).arguments)
    log_probs, targets, *lengths = (given.pop(name) for name in _SEQUENCES)
    if all(isinstance(each, list | tuple) for each in lengths):
        lengths = [torch.tensor(each, dtype=torch.long) for each in lengths]
    return [log_probs, targets, *lengths], given


def _padded(targets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Shapes: targets [N, S] or [sum of lengths], lengths [N] -> [N, a power of two]"""
    longest = _longest(lengths)
    if targets.dim() == 1:
        if lengths.sum() != len(targets):
            return targets
        rows = list(targets.split(lengths.tolist()))
    elif len(targets) != len(lengths) or longest > targets.shape[1]:
        return targets
    else:
        rows = [row[:length] for row, length in zip(targets, lengths.tolist(), strict=True)]
    found = targets.new_zeros(len(rows), max(LEAST, 1 << (longest - 1).bit_length()))
    for row, labels in zip(found, rows, strict=True):
        row[: len(labels)] = labels
    return found


def _longest(lengths: torch.Tensor) -> int:
    return max(int(lengths.max()), 1) if len(lengths) else 1


def _is_plain(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor
