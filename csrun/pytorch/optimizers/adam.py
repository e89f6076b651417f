"""Rules of torch.optim.Adam and AdamW; a moment is csrun's decayed sum times 1 - beta."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from csrun.cirh.algorithms import AdamAttr, Algorithm
from csrun.pytorch.optimizers.base import Group, GroupNumbers, OptimizerRule, Slots, step_tensor


class AdamRule(OptimizerRule):
    """Adam, whose weight decay is added to the gradient."""

    kind = torch.optim.Adam
    fixed: ClassVar[tuple[str, ...]] = (
        "betas",
        "eps",
        "amsgrad",
        "decoupled_weight_decay",
        "maximize",
    )
    cycled: ClassVar[str | None] = "betas"

    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        return AdamAttr.of(
            each.rate,
            each.betas(group),
            group["eps"],
            self.is_decoupled(group),
            each.decay,
            amsgrad=group["amsgrad"],
            maximize=group.get("maximize", False),
        )

    def is_decoupled(self, group: Group) -> bool:
        """True if weight decay is decoupled from the gradient."""
        return bool(group.get("decoupled_weight_decay", False))

    def counts_steps(self, group: Group) -> bool:
        return True  # for the bias correction

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        share = 1 - group["betas"][1]
        found = {
            "step": step_tensor(steps),
            "exp_avg": self.first_moment(slots, group),
            "exp_avg_sq": slots["square_sum"] * share,
        }
        if "largest_square_sum" in slots:
            found["max_exp_avg_sq"] = slots["largest_square_sum"] * share
        return found

    def slots(self, state: Mapping[str, Any], group: Group) -> dict[str, torch.Tensor]:
        share = 1 - group["betas"][1]
        found = {**self.first_slot(state, group), "square_sum": state["exp_avg_sq"] / share}
        if "max_exp_avg_sq" in state:
            found["largest_square_sum"] = state["max_exp_avg_sq"] / share
        return found

    def first_slot(self, state: Mapping[str, Any], group: Group) -> dict[str, torch.Tensor]:
        """Return the slot of the first moment."""
        if self.cycled_momentum(group) is not None:
            return {"gradient_mean": state["exp_avg"]}
        return {"gradient_sum": state["exp_avg"] / (1 - group["betas"][0])}

    def first_moment(self, slots: Slots, group: Group) -> torch.Tensor:
        """Return the first moment; a separate slot if beta1 is cycled."""
        if "gradient_mean" in slots:
            return slots["gradient_mean"]
        return slots["gradient_sum"] * (1 - group["betas"][0])


class AdamWRule(AdamRule):
    """AdamW, whose weight decay is decoupled."""

    kind = torch.optim.AdamW

    def is_decoupled(self, group: Group) -> bool:
        return True


RULES = (AdamRule(), AdamWRule())
