"""Rule of torch.optim.SGD."""

from collections.abc import Mapping
from typing import Any

import torch

from csrun.cirh.algorithms import Algorithm, SgdAttr
from csrun.pytorch.optimizers.base import Group, GroupNumbers, OptimizerRule, Slots


class SgdRule(OptimizerRule):
    """SGD; csrun's momentum is PyTorch's: v = momentum v + (1 - dampening) g, initially g."""

    kind = torch.optim.SGD
    fixed = ("momentum", "nesterov", "dampening", "maximize")
    cycled = "momentum"

    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        return SgdAttr.of(
            each.rate,
            each.momentum(group),
            group["nesterov"],
            each.decay,
            dampening=group["dampening"],
            maximize=group.get("maximize", False),
        )

    def counts_steps(self, group: Group) -> bool:
        return bool(group["momentum"] and group["dampening"])  # the first gradient is not dampened

    def updates_of(self, state: Mapping[str, Any], group: Group) -> int:
        return 1  # or more: the state has no count, and only the first update differs

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        has_buffer = group["momentum"] and "momentum" in slots  # another group may have one
        return {"momentum_buffer": slots["momentum"]} if has_buffer else {}

    def slots(self, state: Mapping[str, Any], group: Group) -> dict[str, torch.Tensor]:
        buffer = state.get("momentum_buffer")
        return {} if buffer is None else {"momentum": buffer}


RULES = (SgdRule(),)
