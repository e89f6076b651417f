"""Several operators as one that the kernels know; before the gradient is taken."""

from xdsl.ir import Operation
from xdsl.rewriter import Rewriter

from csrun.cirh.ops.arithmetic import AddmmOp, AddOp, MmOp
from csrun.cirh.types import shape_of, type_of
from csrun.compiler.passes.rules.base import Rule, Rules, replace_by_operator


def bias_of_product(op: Operation) -> bool:
    """mm(a, b) + c, or c + mm(a, b), with c a row and nobody else reading the product -> addmm."""
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
