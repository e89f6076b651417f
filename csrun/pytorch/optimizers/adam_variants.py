"""Rules of torch.optim.Adamax, NAdam and RAdam, with the moments of Adam."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from csrun.cirh.algorithms import AdamaxAttr, Algorithm, NAdamAttr, RAdamAttr
from csrun.executable.update_factors import nesterov_product
from csrun.pytorch.optimizers.adam import AdamRule
from csrun.pytorch.optimizers.base import Group, GroupNumbers, Slots, step_tensor


class AdamaxRule(AdamRule):
    """Adamax; its infinity norm is csrun's slot."""

    kind = torch.optim.Adamax
    fixed = ("betas", "eps", "maximize")

    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        betas, maximize = each.betas(group), group["maximize"]
        return AdamaxAttr.of(each.rate, betas, group["eps"], each.decay, maximize=maximize)

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        return {
            "step": step_tensor(steps),
            "exp_avg": self.first_moment(slots, group),
            "exp_inf": slots["infinity_norm"],
        }

    def slots(self, state: Mapping[str, Any], group: Group) -> dict[str, torch.Tensor]:
        return {**self.first_slot(state, group), "infinity_norm": state["exp_inf"]}


class NAdamRule(AdamRule):
    """NAdam; its product of momenta needs a constant beta1."""

    kind = torch.optim.NAdam
    fixed = ("betas", "eps", "momentum_decay", "decoupled_weight_decay", "maximize")
    cycled: ClassVar[str | None] = None

    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        return NAdamAttr.of(
            each.rate,
            group["betas"],
            group["eps"],
            group["momentum_decay"],
            group["decoupled_weight_decay"],
            each.decay,
            maximize=group["maximize"],
        )

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        product = nesterov_product(group["betas"][0], group["momentum_decay"], steps, 0.0)
        return {**super().state(slots, group, steps), "mu_product": torch.tensor(product)}


class RAdamRule(AdamRule):
    """RAdam."""

    kind = torch.optim.RAdam
    fixed = ("betas", "eps", "decoupled_weight_decay", "maximize")

    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        return RAdamAttr.of(
            each.rate,
            each.betas(group),
            group["eps"],
            group["decoupled_weight_decay"],
            each.decay,
            maximize=group["maximize"],
        )


RULES = (AdamaxRule(), NAdamRule(), RAdamRule())
