"""Gradients of parameters used through any kind of view, against PyTorch."""

import pytest
from support.autograd import check, trace

from csrun.compiler.matching import match_kernels
from csrun.compiler.passes.pass_manager import PASSES, run_passes

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the gradients")

BATCH, IN, HIDDEN = 6, 4, 3


def a_scale_and_a_shift(f, x):
    h = f.sigmoid(x @ f.p("w", IN, HIDDEN))
    return f.sigmoid(h * f.p("gamma", HIDDEN) + f.p("beta", HIDDEN))


def a_table_of_rows(f, x):
    return f.sigmoid(x @ f.p("w", IN, HIDDEN) + f.p("table", BATCH, HIDDEN))


def a_gate_of_one_number(f, x):
    return f.sigmoid(x @ f.p("w", IN, HIDDEN) * f.sigmoid(f.p("gate", 1)) + f.p("shift"))


def a_loss_of_constant_slope(f, x):
    return x @ f.p("w", IN, 1) + f.p("b", 1)


def a_penalty_on_activities(f, x):
    return f.relu(x @ f.p("w", IN, HIDDEN) + f.p("b", HIDDEN))


def an_input_as_a_gradient(f, x):
    return f.sum(x * f.p("w", BATCH, IN)) + f.sum(x * f.p("v", IN))


def a_number_as_a_gradient(f, x):
    return f.sum(f.p("free", 3)) + f.sum(f.sigmoid(x * f.p("w", IN))) - 2 * f.sum(f.p("other", 2))


def a_parameter_as_a_gradient(f, x):
    return (x @ f.p("w", IN, HIDDEN)) * f.p("v", BATCH, HIDDEN)


def two_of_one_gradient(f, x):
    return f.sigmoid(x * (f.p("one", IN) + f.p("two", IN)) + f.p("far", BATCH, IN))


def a_weight_under_other_views(f, x):
    w = f.reshape(f.p("w", 2, HIDDEN, IN), (2 * HIDDEN, 2, 2))
    return f.sigmoid(x @ f.reshape(f.transpose(w, (1, 2, 0)), (IN, 2 * HIDDEN)))


def a_weight_transposed(f, x):
    return f.sigmoid(x @ f.transpose(f.p("w", HIDDEN, IN)))


def a_product_of_weights(f, x):
    return f.sigmoid(x @ (f.p("down", IN, 2) @ f.p("up", 2, HIDDEN)) + f.p("b", HIDDEN))


def a_sum_over_the_other_axis(f, x):
    h = x @ f.p("w", IN, BATCH)
    return f.sigmoid(h + f.reshape(f.p("column", BATCH), (BATCH, 1)))


def rows_of_a_table(f, x):
    table = f.p("table", 8, IN)
    return f.sigmoid(x + table[1:7]) * table[7] + f.sigmoid(f.p("other", 3, 5)[1, ::2][0])


def one_of_each_row(f, x):
    return f.sigmoid(x * f.p("w", IN, 2)[:, 1])


def norms_of_one_value(f, x):
    h = f.reshape(x @ f.p("w", IN, HIDDEN), (BATCH * HIDDEN, 1))
    return f.norm(h, "norm") * h


def a_weight_used_twice(f, x):
    w = f.p("w", IN, HIDDEN)
    return f.sigmoid(f.sigmoid(x @ w) @ f.transpose(w))


CASES = (
    a_scale_and_a_shift, a_table_of_rows, a_gate_of_one_number, a_loss_of_constant_slope,
    a_penalty_on_activities, an_input_as_a_gradient, a_number_as_a_gradient,
    a_parameter_as_a_gradient,
    two_of_one_gradient, a_weight_under_other_views, a_weight_transposed, a_product_of_weights,
    a_sum_over_the_other_axis, rows_of_a_table, one_of_each_row, a_weight_used_twice,
    norms_of_one_value,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_all_gradients_are_pytorchs(tmp_path, case):
    check(torch, case, (BATCH, IN), tmp_path)


def test_a_gradient_that_no_kernel_writes_is_a_bug():
    module = trace(two_of_one_gradient, (BATCH, IN))
    run_passes(module, [step for step in PASSES if step.name != "copies"])
    with pytest.raises(AssertionError, match="no kernel writes the gradients of one/p, two/p"):
        match_kernels(module)
