"""Results that overwrite operands after their last read, against PyTorch."""

import numpy as np
import pytest
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import RunMode
from csrun.compiler import compile_model
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle")
pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

N = 6


def predict(tmp_path, function):
    """Compile a function of a square product; return its result and the product."""
    with Tracer("float64") as tracer:
        x = tracer.input("features", (N, N), "float64")
        y = function(nn.Dense(N, use_bias=False)(x))
        module = tracer.finish(RunMode.PREDICT, None, None, [("y", y)])
    executable = compile_model(module, tmp_path, options_of(run_mode=RunMode.PREDICT)).executable
    numbers = np.random.default_rng(1)
    kernel, batch = numbers.standard_normal((2, N, N))
    machine = Machine(executable, {"dense/kernel": kernel})
    machine.predict((batch,))
    return executable.program, machine.output("y"), torch.from_numpy(batch @ kernel)


def test_a_value_is_written_over_when_what_was_made_of_it_is_there(tmp_path):
    program, ours, x = predict(tmp_path, lambda x: x * nn.sigmoid(x))
    np.testing.assert_allclose(ours, torch.nn.functional.silu(x), rtol=1e-12)
    assert "multiply(mm, tile, out=mm)" in program


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: x + nn.tanh(nn.transpose(x, (1, 0))), lambda x: x + torch.tanh(x.t())),
        (lambda x: x + x * nn.transpose(x, (1, 0)), lambda x: x + x * x.t()),
        (lambda x: x + nn.softmax(x), lambda x: x + torch.softmax(x, 1)),
    ],
)
def test_a_value_that_is_read_in_another_order_keeps_its_place(tmp_path, ours, theirs):
    _, found, x = predict(tmp_path, ours)
    np.testing.assert_allclose(found, theirs(x), rtol=1e-12)


@pytest.mark.parametrize("form", ["gelu", "gelu_tanh"])
def test_the_slope_of_a_gelu_takes_its_inputs_place(tmp_path, form):
    """Two arrays of this shape in the forward pass, and no cdf in the backward pass."""
    with Tracer("float32") as tracer:
        x = tracer.input("features", (N, N), "float32")
        labels = tracer.input("labels", (N,), "int32")
        logits = nn.Dense(3)(nn.Dense(4 * N, form)(x))
        loss = nn.softmax_cross_entropy(logits, labels)
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])
    executable = compile_model(module, tmp_path, options_of()).executable
    made = [b.name for b in executable.plan.buffers if b.shape == (N, 4 * N)]
    assert [name for name in made if "loop" not in name] == [
        "dense/mm",
        "dense/mul",
        "dense_1/mm_1",
    ]
    forward, _, backward = executable.program.partition("def backward")
    text = "tanh(" if form == "gelu_tanh" else "normal_cdf("
    assert forward.count(text) == 1
    assert text not in backward
