"""One step of one parameter by PyTorch's own optimizer, from state in the store's form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from csrun.pytorch.optimizers.optimization import NUMBERS, Optimization
from csrun.pytorch.record.torch_modes import unrecorded

WEIGHTS = "weights"


@dataclass(frozen=True)
class ParameterState:
    """A parameter before a step: `slots` in the store's form, after this many steps."""

    weights: torch.Tensor
    gradient: torch.Tensor
    slots: Mapping[str, torch.Tensor]
    steps: int


def plain_step(
    optimization: Optimization, name: str, before: ParameterState, numbers: Sequence[float]
) -> dict[str, torch.Tensor]:
    """Return weights and slots of a parameter after a step, by their names in the store.

    numbers: of the step, of all groups, up to the last one that the program reads.
    """
    number, group = optimization.groups()[name]
    place = optimization.place_of(number)
    rate, decay, cycled = (*numbers, *(place + NUMBERS) * [0.0])[place : place + NUMBERS]
    rule, user = optimization.rule, optimization.optimizer
    options: dict[str, Any] = {**group, "lr": rate, "weight_decay": decay}
    if "weight_decay" not in group:
        del options["weight_decay"]
    if rule.cycled is not None and rule.cycled_momentum(group) is not None:
        is_beta = rule.cycled == "betas"
        options[rule.cycled] = (cycled, group["betas"][1]) if is_beta else cycled
    with unrecorded(), torch.no_grad():
        parameter = torch.nn.Parameter(before.weights.clone())
        parameter.grad = before.gradient
        first = {option: group[option] for option in rule.builds_state_from}
        reference = type(user)([parameter], lr=rate, **first)
        reference.param_groups[0].update({**options, "params": [parameter]})
        if before.steps and before.slots:
            reference.state[parameter].update(rule.state(before.slots, group, before.steps))
        reference.step()
        slots = rule.slots(reference.state[parameter], options) if before.slots else {}
    return {WEIGHTS: parameter.detach(), **slots}
