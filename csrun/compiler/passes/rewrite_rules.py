"""Rewrite rules as data: one table per purpose; a rule has a name and the operators it starts from.

A rule changes the module around its operator and returns True, or leaves it unchanged. Tables are
tuples: they are concatenated by `+`, and earlier rules are tried first. `CANONICAL` reduces several
forms to one, `FOLDING` does arithmetic on constants, `FUSION` merges several operators into one
with a simple gradient before differentiation, `SPLITTING` leaves elementwise parts to the generated
kernels.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.base.mode import RunMode
from csrun.cirh.builder import Builder
from csrun.cirh.dialect import FAMILIES, run_mode_of
from csrun.cirh.ops.arithmetic import AddOp, BinaryOp, DivOp, MulOp, NegOp, SqrtOp, SubOp
from csrun.cirh.ops.attention import AttentionOp
from csrun.cirh.ops.base import CirhOp, Plain, ints
from csrun.cirh.ops.batch_norm import NativeBatchNormOp
from csrun.cirh.ops.comparison import WhereOp
from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.gelu import GeluBackwardOp, GeluCdfOp, GeluOp, GeluSlopeOp
from csrun.cirh.ops.learning import AssignOp
from csrun.cirh.ops.model import FullOp, InputOp, ParameterOp, StateOp
from csrun.cirh.ops.products import AddmmOp, MmOp
from csrun.cirh.ops.random import DropoutMaskOp, MaskedScaleOp
from csrun.cirh.ops.shape import (
    VIEWS,
    ExpandOp,
    PermuteOp,
    SelectBackwardOp,
    SliceBackwardOp,
    TransposeOp,
    ViewOp,
)
from csrun.cirh.types import dtype_of, shape_of, tensor_type, type_of


@dataclass(frozen=True)
class Rule:
    """A named rewrite; `apply` returns True if it has changed the module around its operator."""

    name: str
    roots: tuple[type[Operation], ...]
    apply: Callable[[Operation], bool]


Rules = tuple[Rule, ...]

#: Operators that may be erased when nothing reads them; inputs, parameters and states are the
#: model's interface.
PURE: tuple[type[Operation], ...] = tuple(
    op
    for family in FAMILIES
    for op in family.OPS
    if op not in (InputOp, ParameterOp, StateOp) and op.get_irdl_definition().results
)


def replace_by_value(op: Operation, value: SSAValue) -> bool:
    """Replace an operator by `value`, of the same type, in all readers."""
    return replace_by_values(op, (value,))


def replace_by_values(op: Operation, values: Sequence[SSAValue]) -> bool:
    """Replace each result by the value of its type in all readers."""
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    Rewriter.erase_op(op)
    return True


def replace_by_operator(op: Operation, new: Operation) -> bool:
    """Replace an operator by another one with the same result."""
    new.results[0].name_hint = op.results[0].name_hint
    new.location = op.location
    Rewriter.insert_op(new, InsertPoint.before(op))
    return replace_by_value(op, new.results[0])


def same_shape(op: Operation) -> bool:
    """view(x) and expand(x) -> x if the shape does not change."""
    return op.operands[0].type == op.results[0].type and replace_by_value(op, op.operands[0])


def view_of_view(op: Operation) -> bool:
    """view(view(x)) -> view(x)."""
    inner = op.operands[0].owner
    if not isinstance(inner, ViewOp):
        return False
    op.operands[0] = inner.x
    return True


def transpose_of_transpose(op: Operation) -> bool:
    """t(t(x)) -> x."""
    inner = op.operands[0].owner
    return isinstance(inner, TransposeOp) and replace_by_value(op, inner.x)


def identity_permutation(op: Operation) -> bool:
    """permute(x) -> x if every axis stays in place."""
    dims = ints(op.properties, "dims")
    return dims == tuple(range(len(dims))) and replace_by_value(op, op.operands[0])


def selection_as_slice(op: Operation) -> bool:
    """select_backward(g) -> slice_backward(g with an axis of size 1)."""
    assert isinstance(op, SelectBackwardOp)
    scope = {"scope": op.scope} if op.scope else {}
    sizes, dim, index = ints(op.properties, "input_sizes"), op.dim, op.index.value.data
    shape = tuple(1 if d == dim.value.data else n for d, n in enumerate(sizes))
    grad = ViewOp.of([op.grad], shape=shape, **scope)
    grad.location = op.location
    Rewriter.insert_op(grad, InsertPoint.before(op))
    place: dict[str, Plain] = {
        "dim": dim,
        "start": index,
        "end": index + 1,
        "step": 1,
        "input_sizes": sizes,
    }
    return replace_by_operator(op, SliceBackwardOp.of([grad.out], **place, **scope))


def parts_of_a_whole(op: Operation) -> bool:
    """Sum of the gradients of slices that cover an axis -> cat."""
    addends = [value.owner for value in _addends(op)]
    slices = [a for a in addends if isinstance(a, SliceBackwardOp) and a.step.value.data == 1]
    if len(slices) < len(addends) or len({(s.dim, s.input_sizes) for s in slices}) > 1:
        return False
    dim = slices[0].dim.value.data
    slices.sort(key=lambda s: s.start.value.data)
    ends = [0, *(s.end.value.data for s in slices)]
    if [s.start.value.data for s in slices] != ends[:-1]:
        return False
    if ends[-1] != ints(slices[0].properties, "input_sizes")[dim]:
        return False
    scope = slices[0].scope
    tensors = [s.grad for s in slices]
    return replace_by_operator(
        op, CatOp.of(tensors, dim=dim, **({"scope": scope} if scope else {}))
    )


def _addends(op: Operation) -> list[SSAValue]:
    """Return the summands of an addition, with nested additions that only it reads flattened."""
    found: list[SSAValue] = []
    for value in op.operands:
        inner = value.owner
        alone = isinstance(inner, AddOp) and value.uses.get_length() == 1
        found += _addends(inner) if alone and isinstance(inner, AddOp) else [value]
    return found


def negative_of_negative(op: Operation) -> bool:
    """neg(neg(x)) -> x."""
    inner = op.operands[0].owner
    return isinstance(inner, NegOp) and replace_by_value(op, inner.x)


def signs(op: Operation) -> bool:
    """a + neg(b) -> a - b, a - neg(b) -> a + b."""
    assert isinstance(op, AddOp | SubOp)
    negative = op.rhs.owner
    if not isinstance(negative, NegOp):
        return False
    other = SubOp if isinstance(op, AddOp) else AddOp
    operands = (op.lhs, negative.x)
    return replace_by_operator(op, other.of(operands, **({"scope": op.scope} if op.scope else {})))


def dropout_without_training(op: Operation) -> bool:
    """_masked_scale(x, dropout_mask) -> x, in a module that does not train, or at rate 0."""
    mask = op.operands[1].owner
    if not isinstance(mask, DropoutMaskOp):
        return False
    if _trains(op) and mask.rate.value.data > 0:
        return False
    return replace_by_value(op, op.operands[0])


def assignment_without_training(op: Operation) -> bool:
    """Erase assignments in a module that does not train."""
    if _trains(op):
        return False
    Rewriter.erase_op(op)
    return True


def statistics_without_training(op: Operation) -> bool:
    """native_batch_norm -> (x - running mean) weight / sqrt(running variance + eps) + bias."""
    assert isinstance(op, NativeBatchNormOp)
    if _trains(op) or any(result.first_use for result in op.results[1:]):
        return False
    scope = op.scope.data if op.scope else ""
    builder = Builder(InsertPoint.before(op), scope, lambda: op.location)
    emit, shape = builder.emit, (shape_of(type_of(op.weight))[0], 1)
    eps = builder.full(op.eps.value.data, tensor_type((), dtype_of(type_of(op.x))))
    scale = emit(DivOp, op.weight, emit(SqrtOp, emit(AddOp, op.running_var, eps)))
    mean, scale, bias = (emit(ViewOp, v, shape=shape) for v in (op.running_mean, scale, op.bias))
    normal = emit(MulOp, emit(SubOp, op.x, mean), scale)
    op.out.replace_all_uses_with(emit(AddOp, normal, bias))
    Rewriter.erase_op(op)
    return True


def _trains(op: Operation) -> bool:
    module = op.parent_op()
    assert isinstance(module, ModuleOp), "CIRH operators are in a module"
    return run_mode_of(module) is RunMode.TRAIN


def attention_without_training(op: Operation) -> bool:
    """Attention with dropout -> without, in a module that does not train, or at rate 0."""
    assert isinstance(op, AttentionOp)
    module = op.parent_op()
    assert isinstance(module, ModuleOp), "CIRH operators are in a module"
    if op.dropout is None or (run_mode_of(module) is RunMode.TRAIN and op.dropout.value.data > 0):
        return False
    options = {name: value for name, value in op.properties.items() if name != "dropout"}
    plain = AttentionOp.of(op.operands[:-1], **options)
    plain.location = op.location
    Rewriter.insert_op(plain, InsertPoint.before(op))
    return replace_by_values(op, plain.results)


def choice_by_constant(op: Operation) -> bool:
    """where(constant, x, y) -> x or y, with the shape of the result."""
    assert isinstance(op, WhereOp)
    condition = op.condition.owner
    if not isinstance(condition, FullOp):
        return False
    taken = op.lhs if condition.value.value.data else op.rhs
    return taken.type == op.out.type and replace_by_value(op, taken)


CANONICAL: Rules = (
    Rule("same-shape", (ViewOp, ExpandOp), same_shape),
    Rule("view-of-view", (ViewOp,), view_of_view),
    Rule("transpose-of-transpose", (TransposeOp,), transpose_of_transpose),
    Rule("identity-permutation", (PermuteOp,), identity_permutation),
    Rule("selection-as-slice", (SelectBackwardOp,), selection_as_slice),
    Rule("parts-of-a-whole", (AddOp,), parts_of_a_whole),
    Rule("negative-of-negative", (NegOp,), negative_of_negative),
    Rule("signs", (AddOp, SubOp), signs),
    Rule("choice-by-constant", (WhereOp,), choice_by_constant),
    Rule("dropout-without-training", (MaskedScaleOp,), dropout_without_training),
    Rule("attention-without-training", (AttentionOp,), attention_without_training),
    Rule("assignment-without-training", (AssignOp,), assignment_without_training),
    Rule("statistics-without-training", (NativeBatchNormOp,), statistics_without_training),
)


def arithmetic(op: Operation) -> bool:
    """Operator on constants -> constant; not folded if it has no finite value."""
    values = [_constant(operand) for operand in op.operands]
    if None in values:
        return False
    assert isinstance(op, CirhOp), "it is a foldable operator"
    # Not folded without a finite value: NumPy's warning would name no line.
    with np.errstate(all="ignore"):
        # in float64, and rounded once when the constant is written
        value = float(op.compute(*map(np.float64, values)))
    return math.isfinite(value) and _replace_by_constant(op, value)


def moved_constant(op: Operation) -> bool:
    """Constant with another shape -> constant of that shape."""
    value = _constant(op.operands[0])
    return value is not None and _replace_by_constant(op, value)


def neutral_operand(op: Operation) -> bool:
    """x + 0, x - 0, x * 1, x / 1 -> x, and 0 + x, 1 * x -> x."""
    assert isinstance(op, BinaryOp), "other operators have no neutral element"
    pairs = [(op.operands[0], op.operands[1])]
    if op.COMMUTES:
        pairs.append((op.operands[1], op.operands[0]))
    for kept, other in pairs:
        if _constant(other) == op.NEUTRAL and kept.type == op.results[0].type:
            return replace_by_value(op, kept)
    return False


def _constant(value: SSAValue) -> float | None:
    return float(value.owner.value.value.data) if isinstance(value.owner, FullOp) else None


def _replace_by_constant(op: Operation, value: float) -> bool:
    return replace_by_operator(op, FullOp.declare(type_of(op.results[0]), value=value))


_OPERATORS = tuple(op for family in FAMILIES for op in family.OPS)
FOLDING: Rules = (
    Rule("arithmetic", tuple(op for op in _OPERATORS if op.FOLDS), arithmetic),
    Rule("moved-constant", VIEWS, moved_constant),
    Rule(
        "neutral-operand",
        tuple(o for o in _OPERATORS if issubclass(o, BinaryOp) and o.NEUTRAL is not None),
        neutral_operand,
    ),
)


def bias_of_product(op: Operation) -> bool:
    """mm(a, b) + c, or c + mm(a, b), with c a row and no other reader of the product -> addmm."""
    assert isinstance(op, AddOp)
    for value, bias in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        product = value.owner
        if not isinstance(product, MmOp) or value.uses.get_length() > 1:
            continue
        if shape_of(type_of(bias)) != shape_of(type_of(value))[1:]:
            continue
        scope = product.scope or op.scope
        operands = (bias, product.lhs, product.rhs)
        replace_by_operator(op, AddmmOp.of(operands, **({"scope": scope} if scope else {})))
        Rewriter.erase_op(product)
        return True
    return False


FUSION: Rules = (Rule("bias-of-product", (AddOp,), bias_of_product),)


def product_and_bias(op: Operation) -> bool:
    """addmm(c, a, b) -> mm(a, b) + c."""
    assert isinstance(op, AddmmOp)
    scope = {"scope": op.scope} if op.scope else {}
    product = MmOp.of([op.lhs, op.rhs], **scope)
    Rewriter.insert_op(product, InsertPoint.before(op))
    product.location = op.location
    return replace_by_operator(op, AddOp.of([product.out, op.bias], **scope))


def slope_of_gelu(op: Operation) -> bool:
    """gelu(x) and, in the backward pass, gelu_backward(g, x) -> x cdf(x) and g slope(x).

    The slope replaces x in memory, if x has no other reader: backward then costs one product.
    Starting from x it would need the cdf once more.
    """
    assert isinstance(op, GeluBackwardOp)
    forward = _gelu_of(op.saved, op)
    if forward is None:
        return False
    scope = forward.scope.data if forward.scope else ""
    ahead = Builder(InsertPoint.before(forward), scope, lambda: forward.location)
    cdf = ahead.emit(GeluCdfOp, op.saved, approximate=op.approximate)
    product = ahead.emit(MulOp, op.saved, cdf)
    slope = ahead.emit(GeluSlopeOp, op.saved, cdf, product, approximate=op.approximate)
    replace_by_value(forward, product)
    back = MulOp.of([op.grad, slope], **({"scope": op.scope} if op.scope else {}))
    return replace_by_operator(op, back)


def _gelu_of(x: SSAValue, back: GeluBackwardOp) -> GeluOp | None:
    """Return the gelu whose operand only it, and its backward pass, read."""
    others = {use.operation for use in x.uses} - {back}
    forward = others.pop() if len(others) == 1 else None
    alike = isinstance(forward, GeluOp) and forward.approximate == back.approximate
    return forward if alike and back.grad is not x else None


SPLITTING: Rules = (
    Rule("product-and-bias", (AddmmOp,), product_and_bias),
    Rule("slope-of-gelu", (GeluBackwardOp,), slope_of_gelu),
)
