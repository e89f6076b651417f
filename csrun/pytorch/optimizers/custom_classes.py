"""Rules for optimizer classes of scripts, recognised by their names and options.

The Model Zoo has its own classes, whose state exists before the first step.
`csrun.pytorch.optimizers.rule_check` compares the computation of such a class with its rule.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from csrun.cirh.algorithms import AdamAttr, Algorithm, LambAttr
from csrun.pytorch.optimizers.adam import AdamRule
from csrun.pytorch.optimizers.adaptive import AdagradRule, RmsPropRule
from csrun.pytorch.optimizers.base import Group, GroupNumbers, OptimizerRule, Slots
from csrun.pytorch.optimizers.descent import SgdRule


class CustomClassRule(OptimizerRule):
    """Rule of a script's own class. options: of its groups, which identify it."""

    options: ClassVar[frozenset[str]]

    def has_begun(self, state: Mapping[str, Any]) -> bool:
        """True for state that a new optimizer cannot have: a moment other than zero, or counted
        steps.
        """
        moments = ("exp_avg", "momentum_buffer", "square_avg", "exp_avg_sq")
        if any(name in state and bool(state[name].any()) for name in moments):
            return True
        return float(state.get("step", 0)) > 0


class CustomSgdRule(CustomClassRule, SgdRule):
    """SGD with a zero initial momentum; without dampening that is torch.optim's."""

    options = frozenset({"momentum", "dampening", "nesterov", "maximize", "weight_decay"})

    def counts_steps(self, group: Group) -> bool:
        return False


class CustomAdamRule(CustomClassRule, AdamRule):
    """Adam and AdamW that add epsilon to the root of the uncorrected second moment.

    Decoupled decay is `weight_decay`, that of the gradient `l2_regularization_rate`. The state has
    the powers of the betas for the next step's bias correction.
    """

    fixed: ClassVar[tuple[str, ...]] = ("betas", "eps", "amsgrad", "correct_bias")
    options = frozenset({"correct_bias", "l2_regularization_rate", "amsgrad", "weight_decay"})
    cycled = None

    def decay(self, group: Group) -> float:
        return float(group["weight_decay"] or group["l2_regularization_rate"])

    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        return AdamAttr.of(
            each.rate,
            each.betas(group),
            group["eps"],
            not group["l2_regularization_rate"],
            each.decay,
            epsilon_hat=True,
            bias_correction=bool(group["correct_bias"]),
            amsgrad=group["amsgrad"],
        )

    def counts_steps(self, group: Group) -> bool:
        return bool(group["correct_bias"])

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        found = super().state(slots, group, steps)
        del found["step"]
        if group["correct_bias"]:
            for number, beta in enumerate(group["betas"], 1):
                found[f"beta{number}_power"] = torch.tensor(float(beta) ** (steps + 1))
        return found

    def steps_of(self, state: Mapping[str, Any], group: Group) -> int:
        if not group["correct_bias"]:
            return 0
        beta1, power = float(group["betas"][0]), float(state["beta1_power"])
        if power > 0:
            return round(math.log(power) / math.log(beta1)) - 1
        beta2, power = float(group["betas"][1]), float(state["beta2_power"])
        return round(math.log(power) / math.log(beta2)) - 1


class CustomLambRule(CustomClassRule, AdamRule):
    """Lamb without bias correction. adam: the rule of Adam's direction."""

    fixed: ClassVar[tuple[str, ...]] = ("betas", "eps", "adam")
    options = frozenset({"adam", "betas", "eps", "weight_decay"})
    cycled = None

    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        betas, eps = each.betas(group), group["eps"]
        if group["adam"]:
            return AdamAttr.of(
                each.rate, betas, eps, True, each.decay, epsilon_hat=True, bias_correction=False
            )
        return LambAttr.of(each.rate, group["betas"], eps, False, each.decay)

    def counts_steps(self, group: Group) -> bool:
        return False

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        found = super().state(slots, group, steps)
        del found["step"]
        return found


class CustomAdagradRule(CustomClassRule, AdagradRule):
    """Adagrad, as torch.optim's."""

    options = frozenset({"lr_decay", "initial_accumulator_value", "eps", "weight_decay"})


class CustomRmsPropRule(CustomClassRule, RmsPropRule):
    """RMSprop, as torch.optim's; its state counts no steps."""

    options = frozenset({"alpha", "centered", "momentum", "eps", "weight_decay"})

    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        found = super().state(slots, group, steps)
        del found["step"]
        return found


_BY_NAME: Mapping[str, CustomClassRule] = {
    "SGD": CustomSgdRule(),
    "Adam": CustomAdamRule(),
    "AdamW": CustomAdamRule(),
    "Lamb": CustomLambRule(),
    "Adagrad": CustomAdagradRule(),
    "RMSprop": CustomRmsPropRule(),
}


def rule_of_custom_class(optimizer: torch.optim.Optimizer) -> CustomClassRule | None:
    """Return the rule of an optimizer whose class is the script's own, or None."""
    rule = _BY_NAME.get(type(optimizer).__name__)
    if rule is None or type(optimizer).__module__.startswith("torch."):
        return None
    return rule if all(rule.options <= group.keys() for group in optimizer.param_groups) else None
