"""Gradient rules: for each operator, the backward operators that carry a gradient through it.

A rule writes backward operators and gives one gradient an operand, None where there is none to give
or none is wanted. Rules are written against ATen's derivative formulas, one table a family.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.builder import Builder
from csrun.cirh.ops import activation, attention, embedding, loss, normalization, parts
from csrun.cirh.ops.arithmetic import (
    AddmmOp,
    AddOp,
    DivOp,
    ExpOp,
    LogOp,
    MatmulOp,
    MmOp,
    MulOp,
    NegOp,
    SqrtOp,
    SubOp,
    SumOp,
)
from csrun.cirh.ops.base import BackwardOp, CirhOp, Plain, integer, ints, number
from csrun.cirh.ops.batch import MaskPaddingOp
from csrun.cirh.ops.random import MaskedScaleOp
from csrun.cirh.ops.rotary import RotaryEmbeddingOp
from csrun.cirh.ops.shape import (
    CloneOp,
    ExpandOp,
    PermuteOp,
    SelectOp,
    SliceOp,
    TransposeOp,
    ViewOp,
)
from csrun.cirh.types import Tensor, shape_of, type_of

Gradients = list[SSAValue | None]


@dataclass(frozen=True)
class Backward:
    """One operator on the way back: itself, its result's gradient, and which operands want one."""

    op: Operation
    grad: SSAValue
    wanted: tuple[bool, ...]
    builder: Builder

    @property
    def out(self) -> SSAValue:
        return self.op.results[0]

    @property
    def operands(self) -> tuple[SSAValue, ...]:
        return tuple(self.op.operands)


Rule = Callable[[Backward], Gradients]
Rules = Mapping[type[CirhOp], Rule]


def reduced_to(grad: SSAValue, kind: Tensor, builder: Builder) -> SSAValue:
    """The gradient of an operand of type `kind` that was broadcast to the shape of `grad`."""
    own, full = shape_of(kind), shape_of(type_of(grad))
    padded = (1,) * (len(full) - len(own)) + own
    dims = tuple(d for d, (a, b) in enumerate(zip(padded, full, strict=True)) if a != b)
    if dims:
        grad = builder.emit(SumOp, grad, dims=dims, keepdim=True)
    return builder.emit(ViewOp, grad, shape=own) if padded != own else grad


def add(back: Backward) -> Gradients:
    """(g, g)."""
    return [_fit(back, i, back.grad) if back.wanted[i] else None for i in (0, 1)]


def sub(back: Backward) -> Gradients:
    """(g, -g)."""
    left = _fit(back, 0, back.grad) if back.wanted[0] else None
    right = _fit(back, 1, back.builder.emit(NegOp, back.grad)) if back.wanted[1] else None
    return [left, right]


def mul(back: Backward) -> Gradients:
    """(g b, g a)."""
    a, b = back.operands
    left = _fit(back, 0, back.builder.emit(MulOp, back.grad, b)) if back.wanted[0] else None
    right = _fit(back, 1, back.builder.emit(MulOp, back.grad, a)) if back.wanted[1] else None
    return [left, right]


def div(back: Backward) -> Gradients:
    """(g / b, -g (a / b) / b)."""
    emit, b = back.builder.emit, back.operands[1]
    left = _fit(back, 0, emit(DivOp, back.grad, b)) if back.wanted[0] else None
    if not back.wanted[1]:
        return [left, None]
    slope = emit(NegOp, emit(DivOp, back.out, b))
    return [left, _fit(back, 1, emit(MulOp, back.grad, slope))]


def neg(back: Backward) -> Gradients:
    """-g."""
    return [back.builder.emit(NegOp, back.grad)]


def exp(back: Backward) -> Gradients:
    """g e^x, from the saved result."""
    return [back.builder.emit(MulOp, back.grad, back.out)]


def log(back: Backward) -> Gradients:
    """g / x."""
    return [back.builder.emit(DivOp, back.grad, back.operands[0])]


def sqrt(back: Backward) -> Gradients:
    """g / (2 sqrt(x)), from the saved result."""
    emit = back.builder.emit
    return [emit(DivOp, back.grad, emit(AddOp, back.out, back.out))]


def _fit(back: Backward, index: int, grad: SSAValue) -> SSAValue:
    return reduced_to(grad, type_of(back.operands[index]), back.builder)


ELEMENTWISE_RULES: Rules = {
    AddOp: add,
    SubOp: sub,
    MulOp: mul,
    DivOp: div,
    NegOp: neg,
    ExpOp: exp,
    LogOp: log,
    SqrtOp: sqrt,
}


def mm(back: Backward) -> Gradients:
    """(g b^T, a^T g)."""
    return _factors(back, back.operands[0], back.operands[1], back.wanted)


def addmm(back: Backward) -> Gradients:
    """(sum of g over rows, g b^T, a^T g)."""
    bias = None
    if back.wanted[0]:
        bias = back.builder.emit(SumOp, back.grad, dims=(0,), keepdim=False)
    return [bias, *_factors(back, back.operands[1], back.operands[2], back.wanted[1:])]


def _factors(back: Backward, a: SSAValue, b: SSAValue, wanted: tuple[bool, ...]) -> Gradients:
    emit = back.builder.emit
    left = emit(MmOp, back.grad, emit(TransposeOp, b)) if wanted[0] else None
    right = emit(MmOp, emit(TransposeOp, a), back.grad) if wanted[1] else None
    return [left, right]


def matmul(back: Backward) -> Gradients:
    """(g b^T, a^T g), each summed over the leading axes that it was repeated along."""
    a, b = back.operands
    emit = back.builder.emit
    left = emit(MatmulOp, back.grad, _swapped(b, back)) if back.wanted[0] else None
    right = emit(MatmulOp, _swapped(a, back), back.grad) if back.wanted[1] else None
    return [
        None if grad is None else _fit(back, index, grad)
        for index, grad in enumerate((left, right))
    ]


def _swapped(value: SSAValue, back: Backward) -> SSAValue:
    """The matrices transposed."""
    *leading, rows, columns = range(len(shape_of(type_of(value))))
    return back.builder.emit(PermuteOp, value, dims=(*leading, columns, rows))


MATRIX_RULES: Rules = {MmOp: mm, AddmmOp: addmm, MatmulOp: matmul}


def total(back: Backward) -> Gradients:
    """The gradient repeated along the summed axes."""
    full, dims = shape_of(type_of(back.operands[0])), ints(back.op.properties, "dims")
    kept = tuple(1 if d in dims else n for d, n in enumerate(full))
    grad = back.grad
    if shape_of(type_of(grad)) != kept:
        grad = back.builder.emit(ViewOp, grad, shape=kept)
    return [back.builder.emit(ExpandOp, grad, shape=full)]


REDUCTION_RULES: Rules = {SumOp: total}


def view(back: Backward) -> Gradients:
    """The gradient viewed as the operand."""
    shape = shape_of(type_of(back.operands[0]))
    return [back.builder.emit(ViewOp, back.grad, shape=shape)]


def expand(back: Backward) -> Gradients:
    """The gradient summed over the repeated axes."""
    return [reduced_to(back.grad, type_of(back.operands[0]), back.builder)]


def permute(back: Backward) -> Gradients:
    """The gradient permuted back."""
    dims = inverse(ints(back.op.properties, "dims"))
    return [back.builder.emit(PermuteOp, back.grad, dims=dims)]


def transpose(back: Backward) -> Gradients:
    return [back.builder.emit(TransposeOp, back.grad)]


def inverse(dims: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `dims`."""
    return tuple(sorted(range(len(dims)), key=lambda i: dims[i]))


def part(back: Backward) -> Gradients:
    """The gradient in its place, zero beside it."""
    sizes = shape_of(type_of(back.operands[0]))
    return [
        back.builder.emit(parts.SliceBackwardOp, back.grad, input_sizes=sizes, **_options(back))
    ]


def selection(back: Backward) -> Gradients:
    """The gradient in its place, zero beside it."""
    sizes = shape_of(type_of(back.operands[0]))
    return [
        back.builder.emit(parts.SelectBackwardOp, back.grad, input_sizes=sizes, **_options(back))
    ]


def whole_of_part(back: Backward) -> Gradients:
    """The part of the gradient."""
    return [back.builder.emit(SliceOp, back.grad, **_options(back, "input_sizes"))]


def whole_of_selection(back: Backward) -> Gradients:
    """The part of the gradient."""
    return [back.builder.emit(SelectOp, back.grad, **_options(back, "input_sizes"))]


def cat(back: Backward) -> Gradients:
    """To each tensor its part of the gradient."""
    dim, start = integer(back.op.properties, "dim"), 0
    found: Gradients = []
    for operand, wanted in zip(back.operands, back.wanted, strict=True):
        end = start + shape_of(type_of(operand))[dim]
        place = {"dim": dim, "start": start, "end": end, "step": 1}
        found.append(back.builder.emit(SliceOp, back.grad, **place) if wanted else None)
        start = end
    return found


def clone(back: Backward) -> Gradients:
    """The gradient as it is."""
    return [back.grad]


SHAPE_RULES: Rules = {
    ViewOp: view,
    ExpandOp: expand,
    PermuteOp: permute,
    TransposeOp: transpose,
    SliceOp: part,
    SelectOp: selection,
    CloneOp: clone,
    parts.SliceBackwardOp: whole_of_part,
    parts.SelectBackwardOp: whole_of_selection,
    parts.CatOp: cat,
}


def relu(back: Backward) -> Gradients:
    """g where the result is positive; 0 at 0, as in PyTorch."""
    return [back.builder.emit(activation.ThresholdBackwardOp, back.grad, back.out, threshold=0.0)]


def from_output(kind: type[BackwardOp]) -> Rule:
    """The rule of an activation whose slope follows from its output."""
    return lambda back: [back.builder.emit(kind, back.grad, back.out, **_options(back))]


def from_input(kind: type[BackwardOp]) -> Rule:
    """The rule of an activation whose slope takes its input."""
    return lambda back: [back.builder.emit(kind, back.grad, back.operands[0], **_options(back))]


def _options(back: Backward, *without: str) -> dict[str, Plain]:
    left_out = ("scope", *without)
    return {name: value for name, value in back.op.properties.items() if name not in left_out}


ACTIVATION_RULES: Rules = {
    activation.ReluOp: relu,
    activation.SigmoidOp: from_output(activation.SigmoidBackwardOp),
    activation.TanhOp: from_output(activation.TanhBackwardOp),
    activation.EluOp: from_output(activation.EluBackwardOp),
    activation.LeakyReluOp: from_output(activation.LeakyReluBackwardOp),
    activation.HardtanhOp: from_output(activation.HardtanhBackwardOp),
    activation.SiluOp: from_input(activation.SiluBackwardOp),
    activation.SoftplusOp: from_input(activation.SoftplusBackwardOp),
    activation.GeluOp: from_input(activation.GeluBackwardOp),
}


def log_softmax(back: Backward) -> Gradients:
    """g - softmax(x) * sum(g), from the saved result."""
    dim = integer(back.op.properties, "dim")
    return [back.builder.emit(loss.LogSoftmaxBackwardOp, back.grad, back.out, dim=dim)]


def nll_loss(back: Backward) -> Gradients:
    """-g at each row's label; labels have no gradient."""
    ignored = integer(back.op.properties, "ignore_index")
    grad = back.builder.emit(
        loss.NllLossBackwardOp, back.grad, *back.operands, ignore_index=ignored
    )
    return [grad, None]


LOSS_RULES: Rules = {loss.LogSoftmaxOp: log_softmax, loss.NllLossForwardOp: nll_loss}


def masked_scale(back: Backward) -> Gradients:
    """The gradient under the same mask; masks have none."""
    scale = number(back.op.properties, "scale")
    grad = back.builder.emit(MaskedScaleOp, back.grad, back.operands[1], scale=scale)
    return [grad, None]


RANDOM_RULES: Rules = {MaskedScaleOp: masked_scale}


def softmax(back: Backward) -> Gradients:
    """y (g - sum(g y)), from the saved result."""
    dim = integer(back.op.properties, "dim")
    return [back.builder.emit(normalization.SoftmaxBackwardOp, back.grad, back.out, dim=dim)]


def layer_norm(back: Backward) -> Gradients:
    """Of x, weight and bias, from x and the saved mean and rstd."""
    x, weight, _ = back.operands
    _, mean, rstd = back.op.results
    kind = normalization.NativeLayerNormBackwardOp
    return list(back.builder.emit_all(kind, back.grad, x, mean, rstd, weight))


def rms_norm(back: Backward) -> Gradients:
    """Of x and weight, from x and the saved root mean square."""
    x, weight = back.operands
    kind = normalization.FusedRmsNormBackwardOp
    return list(back.builder.emit_all(kind, back.grad, x, back.op.results[1], weight))


NORMALIZATION_RULES: Rules = {
    normalization.SoftmaxOp: softmax,
    normalization.NativeLayerNormOp: layer_norm,
    normalization.FusedRmsNormOp: rms_norm,
}


def lookup(back: Backward) -> Gradients:
    """g added up by row of the weight; indices have no gradient."""
    weight, indices = back.operands
    grad = back.builder.emit(
        embedding.EmbeddingDenseBackwardOp,
        back.grad,
        indices,
        num_weights=shape_of(type_of(weight))[0],
        padding_idx=integer(back.op.properties, "padding_idx"),
    )
    return [grad, None]


def attend(back: Backward) -> Gradients:
    """Of query, key and value, from the saved result and row sums; a mask has none.

    Raises: VerifyException when a mask depends on parameters
    """
    query, key, value, *mask = back.operands
    if any(back.wanted[3:]):
        raise VerifyException("a mask must not depend on parameters")
    kind, results = attention.AttentionBackwardOp, back.op.results
    grads = back.builder.emit_all(
        kind, back.grad, query, key, value, *results, *mask, **_options(back)
    )
    return [*grads, *(None for _ in mask)]


def rotary_embedding(back: Backward) -> Gradients:
    """g turned the other way."""
    assert isinstance(back.op, RotaryEmbeddingOp)
    other_way = not back.op.is_inverse.value.data
    options = _options(back, "is_inverse")
    return [back.builder.emit(RotaryEmbeddingOp, back.grad, is_inverse=other_way, **options)]


TRANSFORMER_RULES: Rules = {
    embedding.EmbeddingOp: lookup,
    attention.AttentionOp: attend,
    RotaryEmbeddingOp: rotary_embedding,
}


def mask_padding(back: Backward) -> Gradients:
    """The gradient, 0 in padding."""
    dim, rows = (integer(back.op.properties, name) for name in ("dim", "rows"))
    samples = back.operands[1]
    grad = back.builder.emit(MaskPaddingOp, back.grad, samples, dim=dim, rows=rows, value=0.0)
    return [grad, None]


BATCH_RULES: Rules = {MaskPaddingOp: mask_padding}

RULES: Rules = {
    **ELEMENTWISE_RULES,
    **MATRIX_RULES,
    **REDUCTION_RULES,
    **SHAPE_RULES,
    **ACTIVATION_RULES,
    **LOSS_RULES,
    **NORMALIZATION_RULES,
    **TRANSFORMER_RULES,
    **RANDOM_RULES,
    **BATCH_RULES,
}
