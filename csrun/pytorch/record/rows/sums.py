"""Rules of operators that add up rows: sums, means, losses, products, additions at indices."""

from collections.abc import Sequence

import torch

from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.rows.operands import Masked, NotByRow, RowOperands, Rule, RuleResult

aten = torch.ops.aten
MEAN, SUM = 1, 2  # ATen's numbers of reductions; 0 is none


def reduced(x: RowOperands) -> RuleResult:
    """A sum or mean over some axes."""
    given, *others = x.arguments
    dims, keepdim = (*others, None, False)[:2] if len(others) != 1 else (others[0], False)
    own, axis, is_mean = x.sizes(given), x.axes[given], x.op.name.startswith("aten.mean.")
    over = {d % len(own) for d in dims} if dims else set(range(len(own)))
    if axis not in over:
        return x.kept(axis if keepdim else axis - sum(d < axis for d in over))
    count = torch.Size([own[d] for d in over if d != axis]).numel() if is_mean else 0
    found = x.summed(Masked(0, axis), divides=count)
    if not is_mean:
        return found
    kind = "sum.dim_IntList" if dims else "sum.default"
    call = aten.sum.dim_IntList if dims else aten.sum.default
    return RuleResult(found.axes, found.arguments, found.masked, count, (f"aten.{kind}", call))


def loss(place: int, *values: float) -> Rule:
    """Return the rule of a loss of two operands of one shape.

    place: of the reduction among the arguments. values: of both operands in padding, where the loss
    must be zero.
    """

    def rule(x: RowOperands) -> RuleResult:
        one, other = x.arguments[:2]
        x.only(0, 1)
        given = x.arguments_up_to(place)
        reduction, axis = given[place], _common_axis(x, one, other)
        if reduction not in (MEAN, SUM):
            return x.kept(axis)
        arguments = (*given[:place], SUM, *given[place + 1 :])
        masked = (Masked(n, axis, value) for n, value in enumerate(values))
        others = torch.Size(x.sizes(one)).numel() // x.count
        return x.summed(*masked, arguments=arguments, divides=others if reduction == MEAN else 0)

    return rule


def loss_backward(place: int) -> Rule:
    """Return the rule of the gradient of such a loss. place: of its reduction."""

    def rule(x: RowOperands) -> RuleResult:
        grad, one, other = x.arguments[:3]
        given = x.arguments_up_to(place)
        reduction = given[place]
        axis = _common_axis(x, one, other)
        if reduction not in (MEAN, SUM):
            x.require(x.axis(grad) == axis)
            return x.kept(axis)
        x.require(x.axis(grad) is None)
        arguments = (*given[:place], SUM, *given[place + 1 :])
        others = torch.Size(x.sizes(one)).numel() // x.count
        return RuleResult((axis,), arguments, (), others if reduction == MEAN else 0)

    return rule


def _common_axis(x: RowOperands, one: Ref, other: Ref) -> int:
    axis = x.axis_of(one)
    x.require(x.axis(other) == axis and x.sizes(one) == x.sizes(other))
    return axis


def loss_by_label(x: RowOperands) -> RuleResult:
    """A loss by label, whose labels in padding are ignored. Shapes: [rows, C], [rows]"""
    first = 1 if x.op.name.endswith("_backward") or "_backward." in x.op.name else 0
    given, labels = x.arguments[first : first + 2]
    x.require(x.axis(given) == 0 and x.axis(labels) == 0 and len(x.sizes(labels)) == 1)
    if x.op.name.startswith("csrun::"):
        ignored, is_reduced = x.op.keywords["ignore_index"], x.op.keywords["reduction"] != "none"
    else:
        weight, reduction, ignored = x.arguments_up_to(first + 4)[first + 2 : first + 5]
        x.require(weight is None)
        is_reduced = reduction in (MEAN, SUM)
    if not is_reduced:
        x.require(not first or x.axis(x.arguments[0]) == 0)
        return x.kept(0)
    masked = (Masked(first + 1, 0, ignored),)
    axes = (0 if first else None,) * len(x.op.results)
    return RuleResult(axes, x.arguments, masked)


def product(x: RowOperands) -> RuleResult:
    """A matrix product of rows with other values, or a sum over rows."""
    *bias, a, b = x.arguments
    x.require(not any(ref in x.axes for ref in bias))
    match x.axis(a), x.axis(b):
        case 0, None:
            return x.kept(0)
        case None, 1:
            return x.kept(1)
        case 1, 0:
            return x.summed(Masked(len(bias), 1), Masked(len(bias) + 1, 0))
    raise NotByRow(f"{x.op.line}: {x.op.name}")


def selected(x: RowOperands) -> RuleResult:
    """Values at indices with rows."""
    given, indices = x.arguments
    x.require(x.axis(given) is None)
    return x.kept(_place_of(x, indices))


def _place_of(x: RowOperands, indices: Sequence[Ref | None]) -> int:
    """Return the axis of rows of values at indices, which must be adjacent and have one axis."""
    places = [n for n, index in enumerate(indices) if index is not None]
    x.require(places == list(range(places[0], places[-1] + 1)))
    for index in filter(None, indices):
        x.require(x.axis(index) == 0 and len(x.sizes(index)) == 1)
    return places[0]


def added_at(x: RowOperands) -> RuleResult:
    """A sum of rows at indices: the backward pass of `selected`."""
    given, indices, values, *others = x.arguments
    x.require(bool(others) and others[0] is True and x.axis(given) is None)
    place = _place_of(x, indices)
    x.require(x.axis(values) == place)
    return x.summed(Masked(2, place))


def embedded(x: RowOperands) -> RuleResult:
    x.only(1)
    return x.kept(x.axis(x.arguments[1]))


def embedded_backward(x: RowOperands) -> RuleResult:
    grad, indices, *_ = x.arguments
    axis = x.axis_of(indices)
    x.require(x.axis(grad) == axis and not x.arguments_up_to(4)[4])
    return x.summed(Masked(0, axis))


def normalized(x: RowOperands) -> RuleResult:
    """A layer norm, over other axes than that of the rows."""
    given, sizes, *_ = x.arguments
    x.only(0)
    axis = x.axes[given]
    x.require(axis < len(x.sizes(given)) - len(sizes))
    return x.kept(axis)


def normalized_backward(x: RowOperands) -> RuleResult:
    """Gradients of the rows, of the weights and of the biases."""
    grad, given, sizes, mean, rstd, *_ = x.arguments
    axis = x.axis_of(given)
    x.require(all(x.axis(each) == axis for each in (grad, mean, rstd)))
    x.require(axis < len(x.sizes(given)) - len(sizes))
    return RuleResult((axis, None, None), x.arguments, (Masked(0, axis),))
