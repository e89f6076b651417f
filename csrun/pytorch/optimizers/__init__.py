"""PyTorch's optimizers: rules convert their types and param_groups to learning algorithms.

The optimizer's own operators are not recorded. Numbers that change each step, the learning rate and
the weight decay of each group, are read at `optimizer.step()`, after the user's scheduler.
"""

from csrun.pytorch.optimizers.optimization import Optimization
from csrun.pytorch.optimizers.rules import RULES

__all__ = ["RULES", "Optimization"]
