"""torch.optim.Adam and AdamW; their moments are csrun's sums times what a moment takes of each."""

from typing import Any, ClassVar

import torch

from csrun.cirh.algorithms import AdamAttr, Algorithm
from csrun.pytorch.optimizers.base import EachStep, Group, Rule, Slots, counted


class Adam(Rule):
    """Weight decay is part of the gradient."""

    kind = torch.optim.Adam
    fixed: ClassVar[tuple[str, ...]] = (
        "betas",
        "eps",
        "amsgrad",
        "decoupled_weight_decay",
        "maximize",
    )
    cycled: ClassVar[str | None] = "betas"

    def algorithm(self, group: Group, each: EachStep) -> Algorithm:
        return AdamAttr.of(
            each.rate,
            each.betas(group),
            group["eps"],
            self.is_decoupled(group),
            each.decay,
            amsgrad=group["amsgrad"],
            maximize=group["maximize"],
        )

    def is_decoupled(self, group: Group) -> bool:
        """Whether weight decay is apart from the gradient."""
        return bool(group.get("decoupled_weight_decay", False))

    def counts_steps(self, group: Group) -> bool:
        return True  # by which the moments are corrected

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        taken = 1 - group["betas"][1]
        found = {
            "step": counted(steps),
            "exp_avg": self.first_moment(slots, group),
            "exp_avg_sq": slots["square_sum"] * taken,
        }
        if "largest_square_sum" in slots:
            found["max_exp_avg_sq"] = slots["largest_square_sum"] * taken
        return found

    def first_moment(self, slots: Slots, group: Group) -> torch.Tensor:
        """Return the first moment, which is a slot itself where beta1 is cycled."""
        if "gradient_mean" in slots:
            return slots["gradient_mean"]
        return slots["gradient_sum"] * (1 - group["betas"][0])


class AdamW(Adam):
    """Weight decay is apart from the gradient."""

    kind = torch.optim.AdamW

    def is_decoupled(self, group: Group) -> bool:
        return True


RULES = (Adam(), AdamW())
