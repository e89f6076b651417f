"""Rotary position embedding in compiled programs: against its formula, and finite differences."""

import numpy as np
import pytest
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.nn.errors import ShapeError
from csrun.nn.tracer import Tracer

B, T, H, E = 2, 5, 3, 8
LABELS = np.array([7, 101], np.int32)


def dense_operand(x):
    return nn.reshape(x, (B, T, H, E)), 1


def by_head(x):
    return nn.transpose(nn.reshape(x, (B, T, H, E)), (0, 2, 1, 3)), -2


def apart(x):
    """Pairs that are not adjacent: the operand is copied before the kernel."""
    return nn.transpose(nn.reshape(x, (B, T, E, H)), (0, 3, 1, 2)), 2


LAYOUTS = {layout.__name__: layout for layout in (dense_operand, by_head, apart)}


def machine_of(root, layout, interleaved, size):
    with Tracer("float64") as tracer:
        x = tracer.input("x", (B, T, H * E), "float64")
        labels = tracer.input("labels", (B,), "int32")
        operand, axis = layout(nn.Dense(H * E, use_bias=False, name="dense")(x))
        out = nn.rotary_embedding(operand, size, 20.0, interleaved, axis)
        raw, _ = layout(x)
        own = nn.rotary_embedding(raw, size, 20.0, interleaved, axis)
        loss = nn.softmax_cross_entropy(nn.flatten(nn.exp(out) * own), labels)
        train_op = nn.SGD(0.1).minimize(loss)
        module = tracer.finish(RunMode.TRAIN, loss, train_op, [("own", own)])
    executable = compile_model(module, root, options_of(ExecutionMode.PIPELINED)).executable
    random = np.random.default_rng(3)
    return Machine(executable, {"dense/kernel": 0.1 * random.standard_normal((H * E, H * E))})


def laid_out(layout, x):
    """Layout of the operand's values, and the position of each."""
    by_position = np.broadcast_to(np.arange(T)[None, :, None, None], (B, T, H, E))
    if layout is dense_operand:
        return x.reshape(B, T, H, E), by_position
    if layout is by_head:
        return x.reshape(B, T, H, E).transpose(0, 2, 1, 3), by_position.transpose(0, 2, 1, 3)
    return x.reshape(B, T, E, H).transpose(0, 3, 1, 2), by_position.transpose(0, 2, 1, 3)


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_turn_by_their_position(tmp_path, layout, interleaved, size):
    machine = machine_of(tmp_path, LAYOUTS[layout], interleaved, size)
    x = np.random.default_rng(4).standard_normal((B, T, H * E))
    _, gradients = machine.train((x, LABELS))
    values, positions = laid_out(LAYOUTS[layout], x)
    expected = values.copy()
    for i in range(size // 2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + size // 2)
        turns = np.exp(1j * positions[..., a] * 20.0 ** (-2 * i / size))
        pair = (values[..., a] + 1j * values[..., b]) * turns
        expected[..., a], expected[..., b] = pair.real, pair.imag
    np.testing.assert_allclose(machine.output("own"), expected, rtol=0, atol=1e-14)
    slope = gradients["dense/kernel"]
    check_differences(machine_of(tmp_path / "again", LAYOUTS[layout], interleaved, size), x, slope)


def check_differences(machine, x, slope):
    """Compare the gradient along two directions with central differences."""
    kernel, random, width = machine.state["dense/kernel"], np.random.default_rng(6), 1e-6
    first = kernel.copy()
    for _ in range(2):
        direction = random.standard_normal(kernel.shape)
        losses = []
        for sign in (1, -1):
            kernel[...] = first + sign * width * direction
            losses.append(machine.evaluate((x, LABELS)))
        found = (losses[0] - losses[1]) / (2 * width)
        assert found == pytest.approx(float(np.sum(slope * direction)), rel=1e-6, abs=1e-9)


def test_what_cannot_turn_is_refused():
    with Tracer("float32") as tracer:
        x = tracer.input("x", (2, 3, 6), "float32")
        ids = tracer.input("ids", (2, 3, 6), "int32")
        assert nn.rotary_embedding(x).shape == (2, 3, 6)
        for arguments, expected in (
            ((x, 5), "rotary_dim must be even and in 2..6, the size of the last axis, got 5"),
            ((x, 0), "got 0"),
            ((x, 4, 0.0), "base must be > 0, got 0.0"),
            (
                (x, 4, 10.0, True, 2),
                r"dim must name an axis before the last one of \[2, 3, 6\], got 2",
            ),
            ((x, 4, 10.0, True, -4), r"the last one of \[2, 3, 6\], got -1"),
            ((ids, 4), "x must be floating point"),
            ((x, 4.0), "rotary_dim must be an integer, got 4.0"),
            ((nn.sum(x, (0, 1, 2)),), r"dim must name an axis before the last one of \[\], got -2"),
        ):
            with pytest.raises(
                ShapeError, match=rf"test_rotary.py:\d+: rotary_embedding: .*{expected}"
            ):
                nn.rotary_embedding(*arguments)
