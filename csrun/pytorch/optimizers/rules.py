"""Table of rules by the class of the optimizer."""

from collections.abc import Mapping

import torch

from csrun.pytorch.optimizers import adam, adam_variants, adaptive, descent, lamb
from csrun.pytorch.optimizers.base import OptimizerRule

_MODULES = (descent, adam, adam_variants, adaptive, lamb)
RULES: Mapping[type[torch.optim.Optimizer], OptimizerRule] = {
    rule.kind: rule for module in _MODULES for rule in module.RULES
}
