"""The rule of each of PyTorch's optimizers that there is one for."""

from collections.abc import Mapping

import torch

from csrun.pytorch.optimizers import adam, adam_variants, adaptive, descent, lamb
from csrun.pytorch.optimizers.base import Rule

_MODULES = (descent, adam, adam_variants, adaptive, lamb)
RULES: Mapping[type[torch.optim.Optimizer], Rule] = {
    rule.kind: rule for module in _MODULES for rule in module.RULES
}
