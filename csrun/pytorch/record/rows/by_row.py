"""Rules of elementwise operators, views and operators along another axis than that of the rows."""

from collections.abc import Sequence

import torch

from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.rows.operands import NotByRow, RowOperands, RuleResult

aten = torch.ops.aten


def elementwise(x: RowOperands) -> RuleResult:
    """Rows of all operands on one axis of the result, with which others are broadcast."""
    found = {x.axes[ref] - len(x.sizes(ref)) for ref in x.op.operands if ref in x.axes}
    x.require(len(found) == 1)
    (from_end,) = found
    for ref in x.op.operands:
        sizes = x.sizes(ref)
        is_broadcast = -from_end > len(sizes) or sizes[from_end] == 1
        x.require(ref in x.axes or is_broadcast)
    return x.kept(from_end + len(x.result))


def divided(x: RowOperands) -> RuleResult:
    """A quotient; the backward pass of a mean divides by the number of its elements.

    A recording with another number of rows reveals a divisor that is only by chance a multiple
    of the rows.
    """
    given, number = x.arguments[:2]
    size = torch.Size(x.sizes(given)).numel()
    is_count = not isinstance(number, Ref) and number and not (size % number or number % x.count)
    if not (is_count and x.op.is_backward):
        return elementwise(x)
    operator = "aten.div.Tensor", aten.div.Tensor
    divides = int(number) // x.count
    return RuleResult((x.axis(given),), x.arguments, (), divides, operator, by_count=True)


def _padded_sizes(x: RowOperands, sizes: Sequence[int], axis: int) -> list[int]:
    found = list(sizes)
    if found[axis] != -1:
        x.require(found[axis] == x.count)
        found[axis] = x.padded
    return found


def viewed(x: RowOperands) -> RuleResult:
    """A view that keeps all sizes up to that of the rows."""
    given, sizes = x.arguments
    axis = x.axis_of(given)
    own, result = x.sizes(given), x.result
    ahead = torch.Size(own[:axis]).numel()
    place = next(
        (
            n
            for n in range(len(result))
            if torch.Size(result[:n]).numel() == ahead and result[n] == x.count
        ),
        None,
    )
    if place is None:
        raise NotByRow(f"{x.op.line}: {x.op.name}")
    return x.kept(place, given, _padded_sizes(x, sizes, place))


def expanded(x: RowOperands) -> RuleResult:
    """An expansion of rows, or of a gradient to rows, which come first."""
    given, sizes, *others = x.arguments
    axis = x.axis(given)
    own = x.sizes(given)
    if axis is None:
        is_new = bool(x.result) and x.result[0] == x.count
        is_new = is_new and (len(own) < len(x.result) or own[0] == 1)
        if not is_new:
            return x.kept(None)
        axis = 0
    else:
        axis += len(x.result) - len(own)
    return x.kept(axis, given, _padded_sizes(x, sizes, axis), *others)


def unsqueezed(x: RowOperands) -> RuleResult:
    given, dim = x.arguments
    axis = x.axes[given]
    dim %= len(x.sizes(given)) + 1
    return x.kept(axis + (dim <= axis))


def squeezed(x: RowOperands) -> RuleResult:
    given, dims = x.arguments
    own, axis = x.sizes(given), x.axes[given]
    wanted = {d % len(own) for d in ([dims] if isinstance(dims, int) else dims)}
    x.require(axis not in wanted)
    return x.kept(axis - sum(own[d] == 1 for d in wanted if d < axis))


def transposed(x: RowOperands) -> RuleResult:
    given = x.arguments[0]
    rank, axis = len(x.sizes(given)), x.axes[given]
    dims = [d % rank for d in x.arguments[1:]] or [0, 1]
    if rank < 2:
        return x.kept(axis)
    return x.kept(dims[1 - dims.index(axis)] if axis in dims else axis)


def permuted(x: RowOperands) -> RuleResult:
    given, dims = x.arguments
    return x.kept([d % len(dims) for d in dims].index(x.axes[given]))


def cut(x: RowOperands) -> RuleResult:
    """An operator along another axis, of the size that it has before."""
    given, dim = x.arguments[:2]
    x.only(0)
    rank, axis = len(x.sizes(given)), x.axes[given]
    x.require(dim % rank != axis)
    is_removed = len(x.result) < rank
    return x.kept(axis - (is_removed and dim % rank < axis))


def extreme(x: RowOperands) -> RuleResult:
    """A maximum or minimum, or its index, along another axis."""
    x.require(isinstance((*x.arguments, None)[1], int))
    return cut(x)


def along(x: RowOperands) -> RuleResult:
    """An operator on operands of one shape, along another axis than that of the rows."""
    given = [a for a in x.arguments if isinstance(a, Ref)]
    dim = next(a for a in x.arguments if isinstance(a, int))
    axis = x.axis_of(given[0])
    x.require(all(x.axis(each) == axis for each in given))
    x.require(dim % len(x.sizes(given[0])) != axis)
    return x.kept(axis)


def gathered(x: RowOperands) -> RuleResult:
    given, dim, index = x.arguments[:3]
    axis = x.axis_of(given)
    x.require(x.axis(index) == axis and dim % len(x.sizes(given)) != axis)
    return x.kept(axis)


def cut_backward(x: RowOperands) -> RuleResult:
    """The gradient of a cut along another axis. Sizes of the whole come second."""
    grad, sizes, dim, *others = x.arguments
    axis, dim = x.axes[grad], dim % len(sizes)
    if len(sizes) > len(x.sizes(grad)):
        axis += dim <= axis
    x.require(dim != axis)
    return x.kept(axis, grad, _padded_sizes(x, sizes, axis), dim, *others)


def zeros(x: RowOperands) -> RuleResult:
    """Zeros of the shape of rows, or of another shape."""
    given, sizes, *others = x.arguments
    if tuple(sizes) != x.sizes(given):
        return x.kept(None)
    axis = x.axes[given]
    return x.kept(axis, given, _padded_sizes(x, sizes, axis), *others)
