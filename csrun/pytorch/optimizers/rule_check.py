"""Check that a script's own optimizer class computes what its rule says.

Three of its steps on small tensors are compared with the rule's in float64, because a script may
have edited the class, or may use the name for another one.
"""

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from csrun.base.errors import UsageError
from csrun.cirh.algorithms import ScheduleAttr
from csrun.cirh.reference.learning import updated
from csrun.pytorch.errors import user_line
from csrun.pytorch.optimizers.base import GroupNumbers, OptimizerRule
from csrun.pytorch.record.torch_modes import unrecorded

_STEPS = 3
_MOST = 1e-5  # relative; a class may compute numbers of the step in float32
_RATE = 0.03
_SCALES = (0.3, 8.0)  # scales of weights: norms of about 1 and 25


def require_rule(optimizer: torch.optim.Optimizer, rule: OptimizerRule, line: str) -> None:
    """Compare an optimizer's own steps with its rule.

    Raises: UsageError with the difference
    """
    for number, group in enumerate(optimizer.param_groups):
        for scale in _SCALES if group["params"] else ():
            found = _difference(optimizer, group, rule, scale)
            if not found <= _MOST:
                kind = type(optimizer)
                raise UsageError(
                    f"{line}: {_STEPS} steps of {kind.__module__}.{kind.__qualname__} differ from "
                    f"the rule of {kind.__name__} by {found:.2g} of a weight, for param_groups["
                    f"{number}]: use the class as it was, or one of torch.optim"
                )


def require_plain_closure(optimizer: torch.optim.Optimizer) -> None:
    """Call an optimizer's own step with a closure.

    Raises: UsageError unless it calls the closure once, before it writes weights
    """
    group = next(group for group in optimizer.param_groups if group["params"])
    calls: list[bool] = []  # whether weights were written before
    with unrecorded(), torch.no_grad():
        parameter = torch.nn.Parameter(torch.ones(3, 4, dtype=torch.float64))
        own = _copy_for(optimizer, group, parameter)

        def closure() -> torch.Tensor:
            calls.append(bool((parameter != 1).any()))
            parameter.grad = torch.ones_like(parameter)
            return torch.tensor(1.0)

        parameter.grad = torch.ones_like(parameter)
        type(own).step(own, closure)
    if calls != [False]:
        raise UsageError(
            f"{user_line()}: {type(optimizer).__name__}.step() does not call its closure once and "
            "before it writes weights: give the Session lists, [model] and [optimizer]"
        )


def _difference(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], rule: OptimizerRule, scale: float
) -> float:
    """Return the largest relative difference of a weight after the steps."""
    drawn = np.random.default_rng(7)
    weights = scale * drawn.standard_normal((3, 4))
    gradients = drawn.standard_normal((_STEPS, 3, 4))
    with unrecorded(), torch.no_grad():
        parameter = torch.nn.Parameter(torch.tensor(weights))
        own = _copy_for(optimizer, group, parameter)
        for gradient in gradients:
            parameter.grad = torch.tensor(gradient)
            type(own).step(own)
    rate: Any = ScheduleAttr.constant(_RATE)
    algorithm = rule.algorithm(group, GroupNumbers(rate, rule.decay(group)))
    slots: dict[str, Any] = {}
    for gradient in gradients:
        weights, slots = updated(algorithm, weights, gradient, slots)
    return float(np.abs(parameter.detach().numpy() - weights).max() / scale)


def _copy_for(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], parameter: torch.nn.Parameter
) -> Any:
    """Return a new optimizer of the same class and options over one parameter."""
    own: Any = copy.copy(optimizer)
    own.param_groups = [{**group, "params": [parameter], "lr": _RATE}]
    first = optimizer.state.get(group["params"][0], {})
    of_weight = group["params"][0].shape
    own.state = defaultdict(dict)
    own.state[parameter] = {
        name: _like(value, of_weight, parameter) for name, value in first.items()
    }
    return own


def _like(value: Any, of_weight: torch.Size, parameter: torch.Tensor) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.shape != of_weight or not value.dim():
        return value.clone()
    return torch.full_like(parameter, float(value.flatten()[0]))
