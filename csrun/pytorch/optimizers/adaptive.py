"""Rules of torch.optim.Adagrad, RMSprop and Adadelta; a mean is csrun's sum times 1 - decay."""

from collections.abc import Mapping
from typing import Any

import torch

from csrun.cirh.algorithms import AdadeltaAttr, AdagradAttr, Algorithm, RmsPropAttr
from csrun.pytorch.optimizers.base import Group, GroupNumbers, OptimizerRule, Slots, step_tensor


class AdagradRule(OptimizerRule):
    """Adagrad; its sum of squares is csrun's slot."""

    kind = torch.optim.Adagrad
    fixed = ("lr_decay", "initial_accumulator_value", "eps", "maximize")
    builds_state_from = ("initial_accumulator_value",)

    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        first = group["initial_accumulator_value"]
        return AdagradAttr.of(
            each.rate,
            group["lr_decay"],
            first,
            group["eps"],
            each.decay,
            maximize=group.get("maximize", False),
        )

    def counts_steps(self, group: Group) -> bool:
        return bool(group["lr_decay"])

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        return {"step": step_tensor(steps), "sum": slots["square_sum"]}

    def slots(self, state: Mapping[str, Any], group: Group) -> dict[str, torch.Tensor]:
        return {"square_sum": state["sum"]}


class RmsPropRule(OptimizerRule):
    """RMSprop; csrun's momentum is scaled by the root of 1 - alpha."""

    kind = torch.optim.RMSprop
    fixed = ("alpha", "eps", "momentum", "centered", "maximize")
    cycled = "momentum"

    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        return RmsPropAttr.of(
            each.rate,
            group["alpha"],
            group["eps"],
            each.momentum(group),
            group["centered"],
            each.decay,
            maximize=group.get("maximize", False),
        )

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        share = 1 - group["alpha"]
        found = {"step": step_tensor(steps), "square_avg": slots["square_sum"] * share}
        if "momentum" in slots:
            found["momentum_buffer"] = slots["momentum"] * share**-0.5
        if group["centered"]:
            found["grad_avg"] = slots["gradient_sum"] * share
        return found

    def slots(self, state: Mapping[str, Any], group: Group) -> dict[str, torch.Tensor]:
        share = 1 - group["alpha"]
        found = {"square_sum": state["square_avg"] / share}
        if group["momentum"]:
            found["momentum"] = state["momentum_buffer"] * share**0.5
        if group["centered"]:
            found["gradient_sum"] = state["grad_avg"] / share
        return found


class AdadeltaRule(OptimizerRule):
    """Adadelta."""

    kind = torch.optim.Adadelta
    fixed = ("rho", "eps", "maximize")

    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        rho, maximize = group["rho"], group["maximize"]
        return AdadeltaAttr.of(each.rate, rho, group["eps"], each.decay, maximize=maximize)

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        share = 1 - group["rho"]
        return {
            "step": step_tensor(steps),
            "square_avg": slots["square_sum"] * share,
            "acc_delta": slots["delta_sum"] * share,
        }

    def slots(self, state: Mapping[str, Any], group: Group) -> dict[str, torch.Tensor]:
        share = 1 - group["rho"]
        return {
            "square_sum": state["square_avg"] / share,
            "delta_sum": state["acc_delta"] / share,
        }


RULES = (AdagradRule(), RmsPropRule(), AdadeltaRule())
