"""Detection of values that are exact in a 16-bit format, so that products may read 16-bit words."""

from csrun import nn
from csrun.base.half_formats import BFLOAT16
from csrun.base.mode import RunMode
from csrun.cirh.ops.products import MatmulOp, MmOp
from csrun.compiler.passes import NO_OBSERVER, run_passes
from csrun.compiler.passes.half_words import HalfWords
from csrun.compiler.passes.mixed_precision import MixedPrecision
from csrun.compiler.passes.widths import is_half
from csrun.nn.tracer import Tracer


def test_values_that_were_rounded_or_widened_or_moved_are_halves():
    with Tracer("float32", BFLOAT16) as tracer:
        x = tracer.input("x", (4, 8), "float32")
        labels = tracer.input("labels", (8,), "int32")
        weights = nn.Dense(8, use_bias=False)
        moved = nn.concatenate([nn.relu(x), x], axis=0)
        hidden = weights(moved)
        float32 = nn.log_softmax(hidden)
        mixed = nn.concatenate([float32, hidden], axis=0)[4:12]
        products = [
            nn.matmul(hidden, nn.transpose(moved)),
            nn.matmul(float32, nn.transpose(moved)),
            nn.matmul(mixed, nn.transpose(moved)),
        ]
        loss = nn.softmax_cross_entropy(sum(products[1:], products[0]), labels)
        module = tracer.finish(RunMode.EVAL, loss, None, [("moved", moved)])
    run_passes(module, (MixedPrecision(), HalfWords()), NO_OBSERVER)
    found = [
        (is_half(op.lhs), is_half(op.rhs)) for op in module.ops if isinstance(op, MatmulOp | MmOp)
    ]
    assert found == [(True, True), (True, True), (False, True), (False, True)]
