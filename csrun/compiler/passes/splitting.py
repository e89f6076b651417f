"""Rules that leave to the generated kernels what is elementwise."""

from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.cirh.builder import Builder
from csrun.cirh.ops.activation import GeluBackwardOp, GeluCdfOp, GeluOp, GeluSlopeOp
from csrun.cirh.ops.arithmetic import AddmmOp, AddOp, MmOp, MulOp
from csrun.compiler.passes.rules import Rule, Rules, replace_by_operator, replace_by_value


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

    The slope takes the place of x in memory, if nobody else reads that: what backward costs is
    one product. It would cost the cdf once more if it began with x.
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
    """The gelu of what nothing but it, and its backward pass, reads."""
    others = {use.operation for use in x.uses} - {back}
    forward = others.pop() if len(others) == 1 else None
    alike = isinstance(forward, GeluOp) and forward.approximate == back.approximate
    return forward if alike and back.grad is not x else None


SPLITTING: Rules = (
    Rule("product-and-bias", (AddmmOp,), product_and_bias),
    Rule("slope-of-gelu", (GeluBackwardOp,), slope_of_gelu),
)
