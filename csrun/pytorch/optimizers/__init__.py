"""PyTorch's optimizers: rules turn their types and param_groups into learning algorithms.

The optimizer's own operators are not recorded. What changes each step, the learning rate and the
weight decay of each group, is read at `optimizer.step()`, after the user's scheduler.
"""

from csrun.pytorch.optimizers.optimization import Optimization
from csrun.pytorch.optimizers.rules import RULES

__all__ = ["RULES", "Optimization"]
