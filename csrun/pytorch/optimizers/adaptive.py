"""torch.optim.Adagrad and RMSprop."""

from typing import Any

import torch

from csrun.cirh.algorithms import AdagradAttr, Algorithm, RmsPropAttr
from csrun.pytorch.optimizers.base import EachStep, Group, Rule, Slots, counted


class Adagrad(Rule):
    """The sum of squares is csrun's."""

    kind = torch.optim.Adagrad
    fixed = ("lr_decay", "initial_accumulator_value", "eps")

    def algorithm(self, group: Group, each: EachStep) -> Algorithm:
        first = group["initial_accumulator_value"]
        return AdagradAttr.of(each.rate, group["lr_decay"], first, group["eps"], each.decay)

    def counts_steps(self, group: Group) -> bool:
        return bool(group["lr_decay"])

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        return {"step": counted(steps), "sum": slots["square_sum"]}


class RmsProp(Rule):
    """Means are csrun's sums times what a mean takes of each; the momentum is of that root's."""

    kind = torch.optim.RMSprop
    fixed = ("alpha", "eps", "momentum", "centered")

    def algorithm(self, group: Group, each: EachStep) -> Algorithm:
        return RmsPropAttr.of(
            each.rate,
            group["alpha"],
            group["eps"],
            group["momentum"],
            group["centered"],
            each.decay,
        )

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        taken = 1 - group["alpha"]
        found = {"step": counted(steps), "square_avg": slots["square_sum"] * taken}
        if group["momentum"]:
            found["momentum_buffer"] = slots["momentum"] * taken**-0.5
        if group["centered"]:
            found["grad_avg"] = slots["gradient_sum"] * taken
        return found


RULES = (Adagrad(), RmsProp())
