"""Every parameter's gradient is written, whatever it is a view of; each against PyTorch."""

import numpy as np
import pytest
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.cirh.ops.arithmetic import MmOp
from csrun.cirh.ops.shape import PermuteOp, TransposeOp, ViewOp
from csrun.compiler import compile_model
from csrun.compiler.matching import match_kernels
from csrun.compiler.passes.run import PASSES, run_passes
from csrun.nn.initializers import zeros
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the gradients")

BATCH, IN, HIDDEN = 6, 4, 3


class Ours:
    """How a case is written for csrun; a layer a parameter."""

    sigmoid, relu = map(staticmethod, (nn.sigmoid, nn.relu))

    def __init__(self, tracer):
        self._tracer = tracer

    def p(self, name, *shape):
        with self._tracer.layer("layer", name):
            return self._tracer.parameter("p", shape, zeros(shape))

    def mm(self, x, y):
        return self._tracer.emit(MmOp, x, y)

    def t(self, x):
        return self._tracer.emit(TransposeOp, x)

    def view(self, x, *shape):
        return self._tracer.emit(ViewOp, x, shape=shape)

    def permute(self, x, *dims):
        return self._tracer.emit(PermuteOp, x, dims=dims)

    def sum(self, x):
        return nn.sum(x, axis=tuple(range(len(x.shape))))


class Theirs:
    """The same for PyTorch, over parameters by csrun's names."""

    sigmoid, relu, mm = map(staticmethod, (torch.sigmoid, torch.relu, torch.mm))
    t, sum = map(staticmethod, (torch.t, torch.sum))

    def __init__(self, parameters):
        self.tensors = {n: torch.tensor(v, requires_grad=True) for n, v in parameters.items()}

    def p(self, name, *shape):
        return self.tensors[f"{name}/p"]

    def view(self, x, *shape):
        return x.reshape(shape)

    def permute(self, x, *dims):
        return x.permute(dims)


def a_scale_and_a_shift(f, x):
    h = f.sigmoid(f.mm(x, f.p("w", IN, HIDDEN)))
    return f.sum(f.sigmoid(h * f.p("gamma", HIDDEN) + f.p("beta", HIDDEN)))


def a_table_of_rows(f, x):
    return f.sum(f.sigmoid(f.mm(x, f.p("w", IN, HIDDEN)) + f.p("table", BATCH, HIDDEN)))


def a_gate_of_one_number(f, x):
    h = f.mm(x, f.p("w", IN, HIDDEN))
    return f.sum(f.sigmoid(h * f.sigmoid(f.p("gate", 1)) + f.p("shift")))


def a_loss_of_constant_slope(f, x):
    return f.sum(f.mm(x, f.p("w", IN, 1)) + f.p("b", 1))


def a_penalty_on_activities(f, x):
    return f.sum(f.relu(f.mm(x, f.p("w", IN, HIDDEN)) + f.p("b", HIDDEN)))


def an_input_as_a_gradient(f, x):
    return f.sum(x * f.p("w", BATCH, IN)) + f.sum(x * f.p("v", IN))


def a_parameter_as_a_gradient(f, x):
    return f.sum(f.mm(x, f.p("w", IN, HIDDEN)) * f.p("v", BATCH, HIDDEN))


def two_of_one_gradient(f, x):
    return f.sum(f.sigmoid(x * (f.p("one", IN) + f.p("two", IN)) + f.p("far", BATCH, IN)))


def a_weight_under_other_views(f, x):
    square = f.permute(f.view(f.p("w", 2, HIDDEN, IN), 2 * HIDDEN, 2, 2), 1, 2, 0)
    return f.sum(f.sigmoid(f.mm(x, f.view(square, IN, 2 * HIDDEN))))


def a_weight_transposed(f, x):
    return f.sum(f.sigmoid(f.mm(x, f.t(f.p("w", HIDDEN, IN)))))


def a_product_of_weights(f, x):
    w = f.mm(f.p("down", IN, 2), f.p("up", 2, HIDDEN))
    return f.sum(f.sigmoid(f.mm(x, w) + f.p("b", HIDDEN)))


def a_sum_over_the_other_axis(f, x):
    h = f.mm(x, f.p("w", IN, BATCH))
    return f.sum(f.sigmoid(h + f.view(f.p("column", BATCH), BATCH, 1)))


def activations_multiplied(f, x):
    h = f.sigmoid(f.mm(x, f.p("w", IN, HIDDEN)))
    scores = f.mm(h, f.t(f.mm(x, f.p("v", IN, HIDDEN))))
    return f.sum(f.sigmoid(f.mm(f.t(f.sigmoid(scores)), h)))


CASES = (
    a_scale_and_a_shift, a_table_of_rows, a_gate_of_one_number, a_loss_of_constant_slope,
    a_penalty_on_activities, an_input_as_a_gradient, a_parameter_as_a_gradient,
    two_of_one_gradient, a_weight_under_other_views, a_weight_transposed, a_product_of_weights,
    a_sum_over_the_other_axis, activations_multiplied,
)  # fmt: skip


def trace(case, precision="float64"):
    with Tracer(precision) as tracer:
        x = tracer.input("x", (BATCH, IN), precision)
        tracer.input("labels", (BATCH,), "int32")
        loss = case(Ours(tracer), x)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_all_gradients_are_pytorchs(tmp_path, case):
    options = options_of(ExecutionMode.WEIGHT_STREAMING, group_bytes=100)
    executable = compile_model(trace(case), tmp_path, options).executable
    random = np.random.default_rng(4)
    parameters = {p.name: random.standard_normal(p.shape) for p in executable.plan.parameters}
    machine, peer = Machine(executable, parameters), Theirs(parameters)
    for _ in range(2):  # the second one over what the first one left
        batch = random.standard_normal((BATCH, IN)), np.zeros(BATCH, np.int32)
        theirs = case(peer, torch.tensor(batch[0]))
        for tensor in peer.tensors.values():
            tensor.grad = None
        theirs.backward()
        kept = batch[0].copy()
        loss, gradients = machine.train(batch)
        np.testing.assert_array_equal(batch[0], kept)
        assert loss == pytest.approx(theirs.item(), rel=1e-12)
        for name, tensor in peer.tensors.items():
            np.testing.assert_allclose(gradients[name], tensor.grad.numpy(), rtol=1e-10, atol=1e-12)
            with torch.no_grad():
                tensor -= 0.1 * tensor.grad


def test_a_gradient_that_no_kernel_writes_is_a_bug():
    module = trace(an_input_as_a_gradient)
    run_passes(module, [step for step in PASSES if step.name != "copies"])
    with pytest.raises(AssertionError, match="no kernel writes the gradients of w/p"):
        match_kernels(module)
