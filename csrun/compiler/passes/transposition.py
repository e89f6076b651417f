"""Wide matrices stored transposed, so that their columns are rows and can be shards.

A product with a shard of columns gives columns of the result, and nothing is summed; a sum over
shards of rows reads and writes the full result once per shard. In the backward pass it is the other
way round. The longer axis is therefore sharded, so that sums are over the shorter one.
"""

from xdsl.dialects.builtin import BoolAttr
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.cirh.builder import Builder
from csrun.cirh.ops.learning import UpdatingOp
from csrun.cirh.ops.model import ParameterOp
from csrun.cirh.ops.products import MmOp
from csrun.cirh.ops.shape import TransposeOp
from csrun.cirh.types import dtype_of, shape_of, tensor_type, type_of
from csrun.compiler.passes.uses import readers_of


def transposed_if_wide(op: ParameterOp) -> ParameterOp:
    """Return the parameter of a matrix, and its transpose if it is wide.

    The decision depends on the shape and on the forward pass, so that an evaluation makes the same
    one as the training.
    """
    rows, columns = shape_of(type_of(op.out))
    if op.transposed is not None or columns <= rows or not _is_multiplied_only(op.out):
        return op
    scope = op.scope.data if op.scope else ""
    builder = Builder(InsertPoint.before(op), scope, lambda: op.location)
    kind = tensor_type((columns, rows), dtype_of(type_of(op.out)))
    transposed = builder.leaf(
        ParameterOp,
        kind,
        symbol=op.symbol,
        initializer=op.initializer,
        transposed=BoolAttr.from_bool(True),
    )
    transposed.name_hint = op.out.name_hint
    for use in list(op.out.uses):
        if isinstance(use.operation, UpdatingOp):
            use.operation.operands[0] = transposed
            _transpose_gradient(use.operation)
    op.out.replace_all_uses_with(builder.emit(TransposeOp, transposed))
    Rewriter.erase_op(op)
    found = transposed.owner
    assert isinstance(found, ParameterOp), "it was just created"
    return found


def _is_multiplied_only(value: SSAValue) -> bool:
    """Return whether only products, as right operand, and its update read it."""
    return all(
        isinstance(op, UpdatingOp) or (isinstance(op, MmOp) and index == 1)
        for op, index, _ in readers_of(value)
    )


def _transpose_gradient(update: UpdatingOp) -> None:
    scope = update.scope.data if update.scope else ""
    builder = Builder(InsertPoint.before(update), scope, lambda: update.location)
    update.operands[1] = builder.emit(TransposeOp, update.grad)
