"""Small models written once, computed by a compiled program and by PyTorch's autograd.

A case is a function of `f`, which has parameters and functions, and of an input; its result is
summed to the loss.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.nn.initializers import zeros
from csrun.nn.tracer import Tracer


class Ours:
    """Namespace of csrun in which a case is written; each parameter is a layer."""

    sigmoid, relu, exp = map(staticmethod, (nn.sigmoid, nn.relu, nn.exp))
    reshape, transpose = map(staticmethod, (nn.reshape, nn.transpose))
    broadcast_to, concatenate = map(staticmethod, (nn.broadcast_to, nn.concatenate))
    attention = staticmethod(nn.scaled_dot_product_attention)

    def norm(self, x, name):
        """Norm over the last axis without weights."""
        return nn.LayerNorm(epsilon=1e-5, name=name)(x)

    def __init__(self, tracer):
        self._tracer = tracer

    def p(self, name, *shape):
        """A parameter."""
        with self._tracer.layer("layer", name):
            return self._tracer.parameter("p", shape, zeros(shape))

    def sum(self, x, axis=None, keepdims=False):
        """Sum over all axes by default."""
        if axis is None and not x.shape:
            return x
        return nn.sum(x, tuple(range(len(x.shape))) if axis is None else axis, keepdims)


class Theirs:
    """Namespace of PyTorch, with parameters by csrun's names."""

    def __init__(self, torch, parameters):
        self.tensors = {n: torch.tensor(v, requires_grad=True) for n, v in parameters.items()}
        self.sigmoid, self.relu, self.exp = torch.sigmoid, torch.relu, torch.exp
        self.reshape, self.broadcast_to = torch.reshape, torch.broadcast_to
        self.concatenate = torch.concatenate
        self._functional = torch.nn.functional
        self.attention = self._functional.scaled_dot_product_attention

    def norm(self, x, name):
        weight, bias = (self.tensors[f"{name}/{what}"] for what in ("gamma", "beta"))
        return self._functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)

    def p(self, name, *shape):
        return self.tensors[f"{name}/p"]

    def transpose(self, x, axes=None):
        return x.permute(tuple(range(x.ndim))[::-1] if axes is None else tuple(axes))

    def sum(self, x, axis=None, keepdims=False):
        return x.sum() if axis is None else x.sum(axis, keepdims)


def trace(case: Callable, shape: tuple[int, ...], precision: str = "float64"):
    """Module of a case in training mode."""
    with Tracer(precision) as tracer:
        x = tracer.input("x", shape, precision)
        tracer.input("labels", shape[:1], "int32")
        f = Ours(tracer)
        out = case(f, x)
        loss = f.sum(out)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [("out", out)])


def check(torch, case: Callable, shape: tuple[int, ...], root: Path) -> str:
    """Compare two steps in weight streaming with PyTorch's; return the program's text.

    The second step reuses the memory of the first one, and inputs must be unchanged.
    """
    options = options_of(ExecutionMode.WEIGHT_STREAMING, group_bytes=100)
    executable = compile_model(trace(case, shape), root, options).executable
    random = np.random.default_rng(4)
    parameters = {p.name: random.standard_normal(p.shape) for p in executable.plan.parameters}
    machine, peer = Machine(executable, parameters), Theirs(torch, parameters)
    optimizer = torch.optim.SGD(peer.tensors.values(), lr=0.1)
    for _ in range(2):
        batch = random.standard_normal(shape), np.zeros(shape[0], np.int32)
        kept = batch[0].copy()
        optimizer.zero_grad()
        out = case(peer, torch.tensor(batch[0]))
        out.sum().backward()
        loss, gradients = machine.train(batch)
        np.testing.assert_array_equal(batch[0], kept)
        assert loss == pytest.approx(out.sum().item(), rel=1e-12)
        np.testing.assert_allclose(machine.output("out"), out.detach().numpy(), rtol=1e-10)
        for name, tensor in peer.tensors.items():
            np.testing.assert_allclose(gradients[name], tensor.grad.numpy(), rtol=1e-9, atol=1e-12)
        optimizer.step()
    return (executable.directory / "program.py").read_text()
