"""torch.optim.Adagrad, RMSprop and Adadelta."""

from typing import Any

import torch

from csrun.cirh.algorithms import AdadeltaAttr, AdagradAttr, Algorithm, RmsPropAttr
from csrun.pytorch.optimizers.base import EachStep, Group, Rule, Slots, counted


class Adagrad(Rule):
    """The sum of squares is csrun's."""

    kind = torch.optim.Adagrad
    fixed = ("lr_decay", "initial_accumulator_value", "eps", "maximize")

    def algorithm(self, group: Group, each: EachStep) -> Algorithm:
        first = group["initial_accumulator_value"]
        return AdagradAttr.of(
            each.rate,
            group["lr_decay"],
            first,
            group["eps"],
            each.decay,
            maximize=group["maximize"],
        )

    def counts_steps(self, group: Group) -> bool:
        return bool(group["lr_decay"])

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        return {"step": counted(steps), "sum": slots["square_sum"]}


class RmsProp(Rule):
    """Means are csrun's sums times what a mean takes of each; the momentum is of that root's."""

    kind = torch.optim.RMSprop
    fixed = ("alpha", "eps", "momentum", "centered", "maximize")
    cycled = "momentum"

    def algorithm(self, group: Group, each: EachStep) -> Algorithm:
        return RmsPropAttr.of(
            each.rate,
            group["alpha"],
            group["eps"],
            each.momentum(group),
            group["centered"],
            each.decay,
            maximize=group["maximize"],
        )

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        taken = 1 - group["alpha"]
        found = {"step": counted(steps), "square_avg": slots["square_sum"] * taken}
        if "momentum" in slots:
            found["momentum_buffer"] = slots["momentum"] * taken**-0.5
        if group["centered"]:
            found["grad_avg"] = slots["gradient_sum"] * taken
        return found


class Adadelta(Rule):
    """Means are csrun's sums times what a mean takes of each."""

    kind = torch.optim.Adadelta
    fixed = ("rho", "eps", "maximize")

    def algorithm(self, group: Group, each: EachStep) -> Algorithm:
        rho, maximize = group["rho"], group["maximize"]
        return AdadeltaAttr.of(each.rate, rho, group["eps"], each.decay, maximize=maximize)

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        taken = 1 - group["rho"]
        return {
            "step": counted(steps),
            "square_avg": slots["square_sum"] * taken,
            "acc_delta": slots["delta_sum"] * taken,
        }


RULES = (Adagrad(), RmsProp(), Adadelta())
