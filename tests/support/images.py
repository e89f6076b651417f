"""Image layers in compiled programs and in PyTorch: one step of all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.nn.tracer import Tracer


@dataclass(frozen=True)
class Case:
    """A layer, and PyTorch's counterpart of the images and the layer's parameters by name.

    images: their values, normal ones by default.
    """

    layer: Callable
    peer: Callable
    shape: tuple[int, ...]
    images: np.ndarray | None = None


@dataclass(frozen=True)
class Found:
    """Inputs and results of a case; `gradients` by the last part of the parameter's name."""

    images: np.ndarray
    slope: np.ndarray
    parameters: dict[str, np.ndarray]
    out: np.ndarray
    gradients: dict[str, np.ndarray]


def stepped(
    root,
    cases: Mapping[str, Case],
    precision: str = "float64",
    mode: ExecutionMode = ExecutionMode.PIPELINED,
) -> dict[str, Found]:
    """Step of a program with all cases: the loss is sum(layer(images + shift) slope).

    The gradient of the shift, a parameter, is that of the layer's input.
    """
    random = np.random.default_rng(3)
    batch, outputs, losses = [], [], []
    with Tracer(precision) as tracer:
        for name, case in cases.items():
            with nn.scope(name):
                x = tracer.input(f"{name}/images", case.shape, precision)
                shift = tracer.parameter("shift", case.shape, nn.initializers.zeros(case.shape))
                out = case.layer(x + shift)
                slope = tracer.input(f"{name}/slope", out.shape, precision)
                losses.append(nn.sum(out * slope, axis=range(len(out.shape))))
                outputs.append((name, out))
            images = random.standard_normal(case.shape) if case.images is None else case.images
            batch += [images.astype(precision), random.standard_normal(out.shape).astype(precision)]
        loss = reduce(add, losses)
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), outputs)
    executable = compile_model(module, root, options_of(mode)).executable
    parameters = {
        p.name: random.standard_normal(p.shape).astype(p.dtype) * _is_drawn(cases, p.name)
        for p in executable.plan.parameters
    }
    machine = Machine(executable, parameters)
    _, gradients = machine.train(tuple(batch))
    return {
        name: Found(
            *batch[2 * place : 2 * place + 2],
            _of(name, parameters),
            machine.output(name).copy(),
            _of(name, gradients),
        )
        for place, name in enumerate(cases)
    }


def _is_drawn(cases: Mapping[str, Case], parameter: str) -> bool:
    """Whether an initial value is drawn, unlike the shift of given images."""
    case, _, rest = parameter.partition("/")
    return rest != "shift" or cases[case].images is None


def check(case: Case, found: Found, torch, tolerance: float) -> None:
    """Compare with PyTorch in float64."""
    leaves = {
        name: torch.from_numpy(value).double().requires_grad_()
        for name, value in found.parameters.items()
    }
    shift = leaves.pop("shift")
    out = case.peer(torch.from_numpy(found.images).double() + shift, **leaves)
    (out * torch.from_numpy(found.slope).double()).sum().backward()
    expected = {"out": out.detach(), "shift": shift.grad}
    expected |= {name: leaf.grad for name, leaf in leaves.items()}
    values = {"out": found.out, **found.gradients}
    assert values.keys() == expected.keys()
    for name, tensor in expected.items():
        scale = max(1, tensor.abs().nan_to_num().max().item())
        np.testing.assert_allclose(
            values[name], tensor, rtol=0, atol=scale * tolerance, err_msg=name
        )


def _of(case: str, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name.rpartition("/")[2]: value
        for name, value in values.items()
        if name.startswith(f"{case}/")
    }
