"""PyTorch functions rewritten with other functions, where its own code reads values or has no
emitter.

Each takes PyTorch's arguments, and autograd decomposes it like the user's own lines.
"""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from inspect import signature
from math import log, pi
from typing import Any

import torch
from torch.nn import functional

from csrun.pytorch.errors import user_line
from csrun.pytorch.record.functions.bags import embedding_bag, segment_reduce
from csrun.pytorch.record.functions.convolutions_3d import conv3d, conv_transpose3d

logger = logging.getLogger("csrun")


def without_old_reduction(function: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """Decorate the recording of a loss to drop `size_average` and `reduce`.

    A call of `function` that sets one of these deprecated options is left to PyTorch.
    """
    form = signature(function)

    def decorate(record: Callable[..., Any]) -> Callable[..., Any]:
        def record_reduced(recorder: Any, *given: Any, **options: Any) -> Any:
            arguments = form.bind(*given, **options).arguments
            old = [arguments.pop(name, None) for name in ("size_average", "reduce")]
            if any(value is not None for value in old):
                return NotImplemented
            return record(recorder, **arguments)

        return record_reduced

    return decorate


def gaussian_nll_loss(
    recorder: Any,
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """Rewritten because PyTorch's own checks for a negative variance, which reads values."""
    if not isinstance(var, torch.Tensor):
        var = torch.full_like(input, float(var))
    if var.size() != input.size() and input.size()[:-1] == var.size():
        var = var.unsqueeze(-1)
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    return _reduced(loss + 0.5 * log(2 * pi) if full else loss, reduction)


@without_old_reduction(functional.multi_margin_loss)
def multi_margin_loss(
    recorder: Any,
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    reduction: str = "mean",
) -> Any:
    """Mean of max(0, margin - x[y] + x[i])^p over the classes i other than y."""
    is_one = input.dim() < 2
    rows = input.reshape(1, -1) if is_one else input
    labels = target.reshape(-1, 1)
    apart = (margin - rows.gather(1, labels) + rows).clamp_min(0)
    apart = apart if p == 1 else apart * apart
    if weight is not None:
        apart = apart * weight[labels]
    classes = torch.arange(rows.shape[1])
    loss = torch.where(labels == classes, 0, apart).sum(1) / rows.shape[1]
    return _reduced(loss[0] if is_one else loss, reduction)


@without_old_reduction(functional.nll_loss)
def nll_loss(
    recorder: Any,
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Any:
    """-weight[y] x[y] of each label; sums and means are left to PyTorch's operator.

    Shapes: input [N, C, ...] or [C], target [N, ...] or []
    """
    if reduction != "none":
        return NotImplemented
    axis = min(input.dim() - 1, 1)
    is_ignored = target == ignore_index
    labels = torch.where(is_ignored, 0, target)
    loss = -input.gather(axis, labels.unsqueeze(axis)).squeeze(axis)
    loss = loss if weight is None else loss * weight[labels]
    return torch.where(is_ignored, 0, loss)


@without_old_reduction(functional.multilabel_margin_loss)
def multilabel_margin_loss(
    recorder: Any,
    input: Any,
    target: Any,
    reduction: str = "mean",
) -> Any:
    """Sum of max(0, 1 - (x[y] - x[i])) over labels y up to the first -1 and other classes i.

    Shapes: input and target [N, C], [C] or []
    """
    is_one = input.dim() < 2
    rows, labels = (x.reshape(1, -1) if is_one else x for x in (input, target))
    is_label = (labels < 0).cumsum(1) == 0
    labels = torch.where(is_label, labels, 0)
    classes = torch.arange(rows.shape[1])
    is_target = ((labels[:, :, None] == classes) & is_label[:, :, None]).any(1)
    apart = (1 - rows.gather(1, labels)[:, :, None] + rows[:, None]).clamp_min(0)
    is_counted = is_label[:, :, None] & ~is_target[:, None]
    loss = torch.where(is_counted, apart, 0).sum((1, 2)) / rows.shape[1]
    return _reduced(loss[0] if is_one else loss, reduction)


def bilinear(recorder: Any, input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """x A y for each matrix A of the weights."""
    found = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return found if bias is None else found + bias


def embedding(
    recorder: Any,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Dense gradients instead of sparse ones: SGD and Adagrad, which take these, do the same."""
    if not sparse:
        return NotImplemented
    log_dense(user_line())
    options = padding_idx, max_norm, norm_type, scale_grad_by_freq
    return functional.embedding(input, weight, *options)


@cache
def log_dense(line: str) -> None:
    """Log once a line that the gradient of an embedding is dense."""
    logger.info(f"{line}: the gradient of an embedding with sparse=True is dense, as all gradients")


def linear_cross_entropy(recorder: Any, *given: Any, options: Any = None, **others: Any) -> Any:
    """A linear layer and its loss; `options` only control the memory of PyTorch's kernel."""
    if options is None:
        return NotImplemented
    return functional.linear_cross_entropy(*given, **others)


def one_hot(recorder: Any, tensor: Any, num_classes: int = -1) -> Any:
    """Scatter, which checks the range of labels; PyTorch's own compares each label with each
    class.
    """
    if num_classes < 1 or not isinstance(tensor, torch.Tensor) or not tensor.dim():
        return NotImplemented
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype)
    return zeros.scatter(-1, tensor[..., None], 1)


def masked_select(recorder: Any, input: Any, mask: Any) -> Any:
    """Index by a mask, whose indices the recorder may know."""
    wide, where = torch.broadcast_tensors(input, mask)
    return wide[where]


def lstsq(recorder: Any, input: Any, b: Any, rcond: Any = None, *, driver: Any = None) -> Any:
    """Least squares of matrices of full rank, by QR.

    Shapes: input [..., M, N], b [..., M, K] or [..., M] -> solution [..., N, K] or [..., N]
    """
    is_vector = b.dim() == 1 or b.shape == input.shape[:-1]
    columns = b.unsqueeze(-1) if is_vector else b
    rows, size = input.shape[-2:]
    if rows >= size:
        q, r = torch.linalg.qr(input)
        found = torch.linalg.solve_triangular(r, q.mT @ columns, upper=True)
    else:  # the solution of least norm
        q, r = torch.linalg.qr(input.mT)
        found = q @ torch.linalg.solve_triangular(r.mT, columns, upper=False)
    empty = torch.zeros(0, dtype=input.dtype)
    has_residuals = rows > size and driver not in (None, "gelsy")
    residuals = (input @ found - columns).square().sum(-2) if has_residuals else empty
    no_rank = torch.zeros(0, dtype=torch.int64)
    rank = no_rank if driver == "gels" else torch.full(input.shape[:-2], min(rows, size))
    values = torch.linalg.svdvals(input.detach()) if driver in ("gelsd", "gelss") else empty
    found = found.squeeze(-1) if is_vector else found
    return torch.return_types.linalg_lstsq((found, residuals, rank, values))


def _reduced(loss: Any, reduction: str) -> Any:
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


COMPOSED: Mapping[Any, Callable[..., Any]] = {
    functional.gaussian_nll_loss: gaussian_nll_loss,
    functional.multi_margin_loss: multi_margin_loss,
    functional.multilabel_margin_loss: multilabel_margin_loss,
    functional.nll_loss: nll_loss,
    functional.bilinear: bilinear,
    functional.embedding: embedding,
    functional.embedding_bag: embedding_bag,
    torch.segment_reduce: segment_reduce,
    functional.linear_cross_entropy: linear_cross_entropy,
    functional.conv3d: conv3d,
    functional.conv_transpose3d: conv_transpose3d,
    functional.one_hot: one_hot,
    torch.linalg.lstsq: lstsq,
    torch.masked_select: masked_select,
    torch.Tensor.masked_select: masked_select,
}
