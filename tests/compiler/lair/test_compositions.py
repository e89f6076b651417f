"""Random compositions of arithmetic, activations and sums, against PyTorch, at any tile size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import RunMode
from csrun.compiler import compile_model
from csrun.compiler.lair import loop
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the arithmetic")

pytestmark = pytest.mark.usefixtures("no_texts")

ROWS, IN, HIDDEN, CLASSES = 12, 4, 6, 3

#: A function of two values, for csrun and for PyTorch; numbers stay near 1, and tame.
STEPS = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "twice": (lambda x, y: 2.0 * x - y, lambda x, y: 2.0 * x - y),
    "mul": (lambda x, y: x * y, lambda x, y: x * y),
    "ratio": (
        lambda x, y: x / (1.5 + nn.tanh(y)),
        lambda x, y: x / (1.5 + torch.tanh(y)),
    ),
    "sigmoid": (lambda x, y: nn.sigmoid(x), lambda x, y: torch.sigmoid(x)),
    "silu": (lambda x, y: nn.silu(x), lambda x, y: torch.nn.functional.silu(x)),
    "gelu": (lambda x, y: nn.gelu(x), lambda x, y: torch.nn.functional.gelu(x)),
    "tanh": (lambda x, y: nn.tanh(x), lambda x, y: torch.tanh(x)),
    "exp": (lambda x, y: nn.exp(-nn.softplus(x)), lambda x, y: torch.exp(-soft(x))),
    "root": (lambda x, y: nn.sqrt(1.0 + x * x), lambda x, y: torch.sqrt(1.0 + x * x)),
    "mean": (
        lambda x, y: nn.mean(x, -1, keepdims=True),
        lambda x, y: x.mean(-1, keepdim=True),
    ),
    "centred": (
        lambda x, y: x - nn.mean(x, -1, keepdims=True),
        lambda x, y: x - x.mean(-1, keepdim=True),
    ),
    "of_batch": (
        lambda x, y: x + 0.1 * nn.sum(y, axis=0, keepdims=True),
        lambda x, y: x + 0.1 * y.sum(0, keepdim=True),
    ),
}
soft = torch.nn.functional.softplus


def compose(start, steps, side):
    """Compose steps that each combine two earlier values; the last three values are added."""
    values = [start]
    for name, left, right in steps:
        values.append(STEPS[name][side](values[left % len(values)], values[right % len(values)]))
    return sum(values[-3:], start)


def ours(steps, root):
    with Tracer("float64") as tracer:
        x = tracer.input("features", (ROWS, IN), "float64")
        labels = tracer.input("labels", (ROWS,), "int32")
        z = compose(nn.Dense(HIDDEN)(x), steps, 0)
        loss = nn.softmax_cross_entropy(nn.Dense(CLASSES)(z), labels)
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [("z", z)])
    return compile_model(module, root, options_of()).executable


def theirs(steps, parameters, batch):
    tensors = {n: torch.tensor(v, requires_grad=True) for n, v in parameters.items()}
    first, second = (tensors[f"{n}/kernel"] for n in ("dense", "dense_1"))
    z = compose(torch.tensor(batch[0]) @ first + tensors["dense/bias"], steps, 1)
    logits = z @ second + tensors["dense_1/bias"]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(batch[1]).long())
    loss.backward()
    return loss.item(), z.detach().numpy(), {n: t.grad.numpy() for n, t in tensors.items()}


@settings(max_examples=30)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(list(STEPS)), st.integers(0, 9), st.integers(0, 9)),
        min_size=1,
        max_size=9,
    ),
    tile_bytes=st.sampled_from([1, 700, 3000, 1 << 20]),
)
def test_a_step_is_pytorchs(tmp_path_factory, steps, tile_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "TILE_BYTES", tile_bytes)
        executable = ours(steps, tmp_path_factory.mktemp("compile"))
    random = np.random.default_rng(3)
    parameters = {p.name: random.standard_normal(p.shape) / 2 for p in executable.plan.parameters}
    batch = random.standard_normal((ROWS, IN)), random.integers(0, CLASSES, ROWS).astype(np.int32)
    machine = Machine(executable, parameters)
    loss, gradients = machine.train(batch)
    their_loss, z, their_gradients = theirs(steps, parameters, batch)
    assert loss == pytest.approx(their_loss, rel=1e-9)
    np.testing.assert_allclose(machine.output("z"), z, rtol=1e-8, atol=1e-10)
    for name, their_gradient in their_gradients.items():
        np.testing.assert_allclose(
            gradients[name], their_gradient, rtol=1e-7, atol=1e-9, err_msg=name
        )
