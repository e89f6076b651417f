"""torch.optim.SGD."""

from typing import Any, ClassVar

import torch

from csrun.cirh.algorithms import Algorithm, SgdAttr
from csrun.pytorch.optimizers.base import EachStep, Group, Rule, Slots


class Sgd(Rule):
    """v = momentum v + g, as csrun has it; a dampened one it has not."""

    kind = torch.optim.SGD
    must_be: ClassVar = {**Rule.must_be, "dampening": 0}
    fixed = ("momentum", "nesterov", "dampening")

    def algorithm(self, group: Group, each: EachStep) -> Algorithm:
        return SgdAttr.of(each.rate, group["momentum"], group["nesterov"], each.decay)

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        return {"momentum_buffer": slots["momentum"]} if group["momentum"] else {}


RULES = (Sgd(),)
