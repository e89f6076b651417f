"""The rule of each of PyTorch's optimizers that there is one for."""

from collections.abc import Mapping

import torch

from csrun.pytorch.optimizers import adam, adaptive, descent, lamb
from csrun.pytorch.optimizers.base import Rule

RULES: Mapping[type[torch.optim.Optimizer], Rule] = {
    rule.kind: rule for module in (descent, adam, adaptive, lamb) for rule in module.RULES
}
