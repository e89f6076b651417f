"""Composite operators, recorded as one node before autograd decomposes them.

Each is one operator in forward and one in backward, for any choice of kernels by PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from csrun.base.errors import CsrunError
from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.functions.composite import CompositeOp
from csrun.pytorch.record.functions.ctc_loss import record_ctc_loss
from csrun.pytorch.record.functions.function_rewrites import COMPOSED, without_old_reduction
from csrun.pytorch.record.functions.packed_sequences import pack, pad, run_recurrent
from csrun.pytorch.record.recording import RecordedOperator
from csrun.pytorch.record.traced import TracedTensor

if TYPE_CHECKING:
    from csrun.pytorch.record.recorder import StepRecorder


def _attention(
    q: Any, k: Any, v: Any, mask: Any = None, kept: Any = None, **options: Any
) -> torch.Tensor:
    if kept is None:
        return call_for_user(functional.scaled_dot_product_attention, (q, k, v, mask), options)
    rate, scale = options["dropout_p"], options["scale"]
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if options["is_causal"]:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if mask is not None:
        is_seen = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if is_seen else scores + mask
    weights = scores.softmax(-1).nan_to_num()  # a query whose keys are all masked
    return _dropout(weights, rate, kept.reshape(weights.shape)) @ v


def _cross_entropy(x: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    return call_for_user(functional.cross_entropy, (x, labels), options)


def _dropout(x: torch.Tensor, p: float, kept: torch.Tensor | None = None) -> torch.Tensor:
    """Dropout with a given mask; without one, for shape inference, PyTorch's."""
    if kept is None:
        return call_for_user(functional.dropout, (x, p))
    return (x * (1 / (1 - p))).masked_fill(~kept, 0)  # with the strides of x


def _channel_dropout(x: torch.Tensor, p: float, kept: torch.Tensor | None = None) -> torch.Tensor:
    """Dropout of channels. Shapes: x [N, C, ...], kept [N, C]"""
    if kept is None:
        return call_for_user(torch.feature_dropout, (x, p, True))
    scales = kept.to(x.dtype) * (1 / (1 - p))
    return x * scales.view(*kept.shape, *(1 for _ in x.shape[2:]))


def _uniform(like: torch.Tensor) -> torch.Tensor:
    """Return numbers for shape inference."""
    return torch.rand_like(like)


def _batch_norm(
    x: Any, mean: Any, var: Any, weight: Any, bias: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    """Return the result, and the next running statistics if there are any."""
    mean, var = (None if r is None else r.clone() for r in (mean, var))
    given = (x, mean, var, weight, bias, True, momentum, eps)
    out = call_for_user(functional.batch_norm, given)
    return (out,) if mean is None else (out, mean, var)


ATTENTION = CompositeOp("csrun::scaled_dot_product_attention", _attention, draws=True)
CROSS_ENTROPY = CompositeOp("csrun::cross_entropy", _cross_entropy)
DROPOUT = CompositeOp("csrun::dropout", _dropout, draws=True)
CHANNEL_DROPOUT = CompositeOp("csrun::channel_dropout", _channel_dropout, draws=True)
UNIFORM = CompositeOp("csrun::uniform", _uniform, draws=True)
BATCH_NORM = CompositeOp("csrun::batch_norm", _batch_norm)


def record_attention(
    recorder: StepRecorder,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Record attention; left to PyTorch if the mask needs a gradient. Shared keys are repeated."""
    if attn_mask is not None and attn_mask.requires_grad:
        return NotImplemented
    if enable_gqa:
        heads = query.shape[-3]
        key, value = (x.repeat_interleave(heads // x.shape[-3], -3) for x in (key, value))
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        first = torch.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))
        query, key, value = (x.expand(*first, *x.shape[-2:]) for x in (query, key, value))
    tensors = (query, key, value, *([] if attn_mask is None else [attn_mask]))
    options = {"dropout_p": float(dropout_p), "is_causal": bool(is_causal), "scale": scale}
    return ATTENTION.record(recorder, tensors, **options)


@without_old_reduction(functional.cross_entropy)
def record_cross_entropy(
    recorder: StepRecorder,
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Record cross entropy; left to PyTorch with class weights or probabilities as labels."""
    if weight is not None:
        return NotImplemented
    if target.is_floating_point():
        return NotImplemented
    options = {
        "ignore_index": ignore_index,
        "reduction": reduction,
        "label_smoothing": float(label_smoothing),
    }
    return CROSS_ENTROPY.record(recorder, (input, target), **options)


def record_dropout(
    recorder: StepRecorder,
    input: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    """Record dropout; left to PyTorch for a rate of 0 or 1, and of a weight."""
    return _record_dropped(DROPOUT, recorder, input, p, training, inplace)


def record_channel_dropout(
    recorder: StepRecorder,
    input: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    """Record dropout of channels; left to PyTorch without an axis of samples."""
    if input.dim() < 3:
        return NotImplemented
    return _record_dropped(CHANNEL_DROPOUT, recorder, input, p, training, inplace)


def draw_uniform(recorder: StepRecorder, like: torch.Tensor) -> torch.Tensor:
    """Return csrun's uniform numbers in (0, 1), with the shape and the samples of a tensor."""
    with torch.no_grad():
        drawn: torch.Tensor = UNIFORM.record(recorder, (like,))
    return drawn


def _record_dropped(
    composite: CompositeOp,
    recorder: StepRecorder,
    input: Any,
    p: float,
    training: bool,
    inplace: bool,
) -> Any:
    if not training or not 0 < p < 1 or not isinstance(input, TracedTensor):
        return NotImplemented
    out = composite.record(recorder, (input,), p=float(p))
    return input.copy_(out) if inplace else out


def record_instance_norm(
    recorder: StepRecorder,
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Record a group norm with a group per channel, and the updates of running statistics; with
    these in eval(), a batch norm.

    Raises: ValueError, as in PyTorch, for one value per channel and sample
    """
    if not use_input_stats:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    if input.shape[2:].numel() == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size {input.shape}"
        )
    if running_mean is not None:
        _require_owned(recorder, running_mean)
        with torch.no_grad():
            var, mean = torch.var_mean(input, tuple(range(2, input.dim())))
            for buffer, each in ((running_mean, mean), (running_var, var)):
                buffer.copy_(buffer * (1 - momentum) + each.mean(0) * momentum)
    return functional.group_norm(input, input.shape[1], weight, bias, eps)


def record_batch_norm(
    recorder: StepRecorder,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Record a batch norm; left to PyTorch in eval(), which uses the running statistics."""
    if not training:
        return NotImplemented
    if running_mean is not None:
        _require_owned(recorder, running_mean)
    tensors = (input, running_mean, running_var, weight, bias)
    is_mean = recorder.counters.is_counter_read(running_mean)  # over all batches: momentum=None
    by = 1.0 if is_mean else float(momentum)
    out, *running = BATCH_NORM.record(recorder, tensors, momentum=by, eps=float(eps))
    for buffer, value in zip((running_mean, running_var), running, strict=False):
        if is_mean:  # the numbers are inputs of the step
            with torch.no_grad():
                buffer.copy_(buffer * (1 - momentum) + value * momentum)
        else:
            recorder.traced(buffer).value = value.value
    return out


def _require_owned(recorder: StepRecorder, buffer: Any) -> None:
    if isinstance(buffer, TracedTensor) or not recorder.is_owned(buffer):
        raise recorder.refusal(
            "a batch norm outside the model is in training mode and would update its "
            "statistics: call eval() on its module"
        )


def record_recurrent(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the recording of a recurrent network with dropout or with reordered axes."""

    def record(recorder: StepRecorder, *given: Any) -> Any:
        if not isinstance(given[3], bool):  # a packed sequence
            return run_recurrent(recorder, func, *given)
        call = _Recurrent(func, *given[3:])
        drops = call.is_training and call.dropout and call.layers > 1
        if not drops and (func is torch.lstm or not call.is_batch_first):
            return NotImplemented
        x = given[0].transpose(0, 1) if call.is_batch_first else given[0]
        out, *hidden = call.by_layer(x, given[1], given[2]) if drops else call(x, *given[1:3])
        return out.transpose(0, 1) if call.is_batch_first else out, *hidden

    return record


@dataclass(frozen=True)
class _Recurrent:
    """torch.lstm, gru, rnn_tanh or rnn_relu with its options, in the order of its arguments."""

    func: Callable[..., Any]
    has_biases: bool
    layers: int
    dropout: float
    is_training: bool
    is_bidirectional: bool
    is_batch_first: bool

    def __call__(self, x: Any, state: Any, weights: Sequence[Any], layers: int = 0) -> Any:
        """Run all layers at once, without dropout. Shapes: x [T, B, D]"""
        options = (self.has_biases, layers or self.layers, 0.0, self.is_training)
        return self.func(x, state, weights, *options, self.is_bidirectional, False)

    def by_layer(self, x: Any, state: Any, weights: Sequence[Any]) -> Any:
        """Run layer by layer, with dropout before each but the first."""
        size, directions = len(weights) // self.layers, 2 if self.is_bidirectional else 1
        last = []
        for layer in range(self.layers):
            if layer:
                x = functional.dropout(x, self.dropout)
            rows = slice(layer * directions, (layer + 1) * directions)
            own = tuple(s[rows] for s in state) if isinstance(state, list | tuple) else state[rows]
            x, *hidden = self(x, own, weights[layer * size : (layer + 1) * size], 1)
            last.append(hidden)
        return x, *(torch.cat(each) for each in zip(*last, strict=True))


#: Names of the operators that draw, forward and backward.
_DRAWN = (ATTENTION, DROPOUT, CHANNEL_DROPOUT, UNIFORM)
DRAWING = {name for w in _DRAWN for name in (w.name, w.backward_name)}


def draws_mask(operator: RecordedOperator) -> bool:
    """True if an operator, forward or backward, has a dropout mask."""
    return operator.name in DRAWING and operator.keywords.get("dropout_p") != 0


def is_valid(recorder: StepRecorder, given: Any) -> bool:
    """Return True: argument validation of torch.distributions is skipped, as in PyTorch's own
    tracing.
    """
    return True


_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)

COMPOSITES: Mapping[Any, Callable[..., Any]] = {
    **COMPOSED,
    functional.scaled_dot_product_attention: record_attention,
    functional.cross_entropy: record_cross_entropy,
    functional.ctc_loss: record_ctc_loss,
    functional.dropout: record_dropout,
    functional.dropout1d: record_channel_dropout,
    functional.dropout2d: record_channel_dropout,
    functional.dropout3d: record_channel_dropout,
    functional.batch_norm: record_batch_norm,
    functional.instance_norm: record_instance_norm,
    torch._is_all_true: is_valid,
    torch._pack_padded_sequence: pack,
    torch._pad_packed_sequence: pad,
    **{func: record_recurrent(func) for func in _RECURRENT},
}


def _is_of_step(recorder: StepRecorder, argument: Any) -> bool:
    if isinstance(argument, TracedTensor):
        return True
    return isinstance(argument, torch.nn.Parameter) and recorder.is_owned(argument)


def record_composite(
    recorder: StepRecorder, func: Any, args: Any, kwargs: Mapping[str, Any]
) -> Any:
    """Record a composite and return its results; NotImplemented for other functions.

    Raises: PyTorch's own error for arguments that it refuses
    """
    found = COMPOSITES.get(func)
    if found is None or not any(_is_of_step(recorder, leaf) for leaf in leaves_of(args, kwargs)):
        return NotImplemented
    try:
        return found(recorder, *args, **kwargs)
    except CsrunError:
        raise
    except Exception:
        recorder.require_accepted(func, args, kwargs)
        raise
