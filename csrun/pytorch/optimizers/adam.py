"""torch.optim.Adam and AdamW; their moments are csrun's sums times what a moment takes of each."""

from typing import Any, ClassVar

import torch

from csrun.cirh.algorithms import AdamAttr, Algorithm
from csrun.pytorch.optimizers.base import EachStep, Group, Rule, Slots, counted


class Adam(Rule):
    """Weight decay is part of the gradient."""

    kind = torch.optim.Adam
    must_be: ClassVar = {**Rule.must_be, "amsgrad": False}
    fixed: ClassVar[tuple[str, ...]] = ("betas", "eps", "amsgrad", "decoupled_weight_decay")

    def algorithm(self, group: Group, each: EachStep) -> Algorithm:
        decoupled = group.get("decoupled_weight_decay", False)
        return AdamAttr.of(each.rate, group["betas"], group["eps"], decoupled, each.decay)

    def counts_steps(self, group: Group) -> bool:
        return True  # by which the moments are corrected

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {
            "step": counted(steps),
            "exp_avg": slots["gradient_sum"] * (1 - beta1),
            "exp_avg_sq": slots["square_sum"] * (1 - beta2),
        }


class AdamW(Adam):
    """Weight decay is apart from the gradient."""

    kind = torch.optim.AdamW

    def algorithm(self, group: Group, each: EachStep) -> Algorithm:
        return AdamAttr.of(each.rate, group["betas"], group["eps"], True, each.decay)


RULES = (Adam(), AdamW())
