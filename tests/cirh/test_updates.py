"""The reference implementations of the update operators against torch.optim."""

import numpy as np
import pytest
from support.graphs import input_type
from support.operators import normal
from support.optimizers import Lamb, TensorFlowAdam
from xdsl.rewriter import InsertPoint

from csrun.base.mode import RunMode
from csrun.cirh import Builder, new_module, parse_module, print_module
from csrun.cirh.algorithms import (
    AdadeltaAttr,
    AdagradAttr,
    AdamAttr,
    AdamaxAttr,
    LambAttr,
    NAdamAttr,
    RAdamAttr,
    RmsPropAttr,
    ScheduleAttr,
    SgdAttr,
)
from csrun.cirh.ops.learning import UPDATES
from csrun.cirh.ops.model import Distribution, InitializerAttr, InputOp, ParameterOp
from csrun.cirh.reference import ModuleState, interpret

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the updates")
SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
OPTIM = torch.optim
ADAGRAD, RMSPROP = torch.optim.Adagrad, torch.optim.RMSprop

ROUNDED = tuple(torch.tensor([0.9, 0.999], dtype=torch.float32).tolist())
CASES = {
    "sgd": (SgdAttr.of(0.1), lambda p: SGD(p, lr=0.1)),
    "momentum": (SgdAttr.of(0.1, 0.9), lambda p: SGD(p, lr=0.1, momentum=0.9)),
    "nesterov": (
        SgdAttr.of(0.1, 0.9, True, 0.2),
        lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.2),
    ),
    "adam": (
        AdamAttr.of(0.1, weight_decay=0.2),
        lambda p: ADAM(p, lr=0.1, weight_decay=0.2),
    ),
    "adamw": (
        AdamAttr.of(0.1, (0.5, 0.7), 1e-3, True, 0.2),
        lambda p: ADAMW(p, lr=0.1, betas=(0.5, 0.7), eps=1e-3, weight_decay=0.2),
    ),
    "adam-tensorflow": (
        AdamAttr.of(0.1, epsilon=1e-2, epsilon_hat=True),
        lambda p: TensorFlowAdam(p, 0.1, epsilon=1e-2),
    ),
    "adam-keras": (
        AdamAttr.of(0.1, epsilon=1e-2, epsilon_hat=True, rounded_betas=True),
        lambda p: TensorFlowAdam(p, 0.1, epsilon=1e-2, correcting=ROUNDED),
    ),
    "adam-biased": (
        AdamAttr.of(0.1, epsilon=1e-2, bias_correction=False),
        lambda p: TensorFlowAdam(p, 0.1, epsilon=1e-2, bias_correction=False),
    ),
    "lamb": (LambAttr.of(0.1, weight_decay=0.2), lambda p: Lamb(p, 0.1, weight_decay=0.2)),
    "adagrad": (
        AdagradAttr.of(0.1, 0.2, 0.3, 1e-3, 0.2),
        lambda p: ADAGRAD(
            p, lr=0.1, lr_decay=0.2, initial_accumulator_value=0.3, eps=1e-3, weight_decay=0.2
        ),
    ),
    "rmsprop": (
        RmsPropAttr.of(0.1, 0.8, 1e-3, 0.9, False, 0.2),
        lambda p: RMSPROP(p, lr=0.1, alpha=0.8, eps=1e-3, momentum=0.9, weight_decay=0.2),
    ),
    "rmsprop-centered": (
        RmsPropAttr.of(0.1, 0.8, 1e-3, centered=True),
        lambda p: RMSPROP(p, lr=0.1, alpha=0.8, eps=1e-3, centered=True),
    ),
    "sgd-dampened": (
        SgdAttr.of(0.1, 0.9, dampening=0.4, maximize=True),
        lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.4, maximize=True),
    ),
    "amsgrad": (
        AdamAttr.of(0.1, (0.5, 0.6), amsgrad=True),
        lambda p: ADAM(p, lr=0.1, betas=(0.5, 0.6), amsgrad=True),
    ),
    "adamax": (
        AdamaxAttr.of(0.1, (0.5, 0.6), 1e-3, 0.2),
        lambda p: OPTIM.Adamax(p, 0.1, (0.5, 0.6), 1e-3, 0.2),
    ),
    "nadam": (
        NAdamAttr.of(0.1, (0.5, 0.6), 1e-3, 0.1, True, 0.2),
        lambda p: OPTIM.NAdam(p, 0.1, (0.5, 0.6), 1e-3, 0.2, 0.1, True),
    ),
    "radam": (
        RAdamAttr.of(0.1, (0.5, 0.9), 1e-3, True, 0.2),
        lambda p: OPTIM.RAdam(p, 0.1, (0.5, 0.9), 1e-3, 0.2, True),
    ),
    "adadelta": (
        AdadeltaAttr.of(0.1, 0.8, 1e-3, 0.2, maximize=True),
        lambda p: OPTIM.Adadelta(p, 0.1, 0.8, 1e-3, 0.2, maximize=True),
    ),
}


def module_with(algorithm, array, **clipping):
    """Module with one gradient that updates one parameter."""
    module = new_module("float64", RunMode.TRAIN)
    builder = Builder(InsertPoint.at_end(module.body.block), "layer")
    zeros = InitializerAttr.of(Distribution.ZEROS)
    weights = builder.leaf(ParameterOp, input_type(array), symbol="w", initializer=zeros)
    grad = builder.leaf(InputOp, input_type(array), symbol="grad")
    builder.effect(UPDATES[type(algorithm)], weights, grad, algorithm=algorithm, **clipping)
    module.verify()
    return module


@pytest.mark.parametrize("name", CASES)
def test_ten_updates_are_pytorchs(name):
    algorithm, make = CASES[name]
    first = normal(4, 3)
    module, state = module_with(algorithm, first), ModuleState({"w": first})
    tensor = torch.from_numpy(first.copy()).requires_grad_()
    optimizer = make([tensor])
    for _ in range(10):
        grad = normal(4, 3)
        interpret(module, {"grad": grad}, state, rows=1)
        tensor.grad = torch.from_numpy(grad)
        optimizer.step()
        # PyTorch's NAdam has its product of momenta in float32.
        near = {"rtol": 1e-6, "atol": 1e-8} if name == "nadam" else {"rtol": 1e-12}
        np.testing.assert_allclose(state.parameters["w"], tensor.detach().numpy(), **near)


@pytest.mark.parametrize("clip_norm", [0.5, 100.0])
def test_clipped_updates_are_pytorchs(clip_norm):
    algorithm, make = CASES["sgd"]
    first, grad = normal(4, 3), normal(4, 3)
    module, state = module_with(algorithm, first, clip_norm=clip_norm), ModuleState({"w": first})
    assert print_module(parse_module(print_module(module))) == print_module(module)
    tensor = torch.from_numpy(first.copy()).requires_grad_()
    tensor.grad = torch.from_numpy(grad.copy())
    torch.nn.utils.clip_grad_norm_([tensor], clip_norm)
    make([tensor]).step()
    interpret(module, {"grad": grad}, state, rows=1)
    np.testing.assert_allclose(state.parameters["w"], tensor.detach().numpy(), rtol=1e-12)


def test_a_rate_that_changes_is_not_the_references():
    numbers = {"initial_learning_rate": 1.0, "end_learning_rate": 0.0, "steps": 5}
    algorithm = SgdAttr.of(ScheduleAttr.of("linear", {**numbers, "warmup_steps": 0}))
    module = module_with(algorithm, normal(2))
    with pytest.raises(ValueError, match="constant learning rates"):
        interpret(module, {"grad": normal(2)}, ModuleState({"w": normal(2)}), rows=1)
