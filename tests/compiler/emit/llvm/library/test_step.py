"""A step with kernels of several families: same bits with any number of threads, close to NumPy."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.library_code import normal
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import RunMode
from csrun.compiler import compile_model
from csrun.nn.tracer import Tracer


def traced():
    """Lookups, concatenation, padded pooling, sines and powers, and their gradients."""
    with Tracer("float32") as tracer:
        x = tracer.input("images", (6, 3, 12, 12), "float32")
        labels = tracer.input("labels", (6,), "int32")
        places = tracer.input("places", (6, 40), "int32")
        x = nn.concatenate([nn.sin(nn.Conv2D(8, 3, padding=1)(x)), x], axis=1)
        x = nn.flatten(nn.MaxPool(3, stride=2, padding=1)(x))
        x = nn.Dense(40)(x)
        x = nn.concatenate([nn.gather(x, places), nn.pow(nn.sigmoid(x), 2.3)], axis=1)
        loss = nn.softmax_cross_entropy(nn.Dense(5)(x), labels)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])


def test_threads_change_no_bit_and_numpy_is_near(tmp_path):
    places = np.random.default_rng(1).integers(0, 40, (6, 40)).astype("int32")
    batch = normal(6, 3, 12, 12), np.arange(6, dtype="int32") % 5, places
    found = []
    for form, threads in (("llvm", 1), ("llvm", 2), ("llvm", 3), ("numpy", 1)):
        options = options_of(kernels=form)
        executable = compile_model(traced(), tmp_path / f"{form}{threads}", options).executable
        machine = Machine(executable, {}, threads)
        losses = [machine.train(batch)[0] for _ in range(3)]
        found.append((losses, {name: value.copy() for name, value in machine.state.items()}))
    (losses, state), *others, by_numpy = found
    for other_losses, other in others:
        assert other_losses == losses
        for name, value in state.items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)
    np.testing.assert_allclose(by_numpy[0], losses, rtol=1e-5)
    for name, value in state.items():
        np.testing.assert_allclose(by_numpy[1][name], value, rtol=1e-4, atol=1e-5, err_msg=name)
