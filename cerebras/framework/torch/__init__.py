"""cerebras.framework.torch: the package that the Model Zoo's scripts import as cbtorch.

It is implemented in `csrun.pytorch.framework`.
"""

from cerebras.framework.torch import amp, core, data, nn, optim, utils
from csrun.pytorch.framework.loader import dataloader
from csrun.pytorch.framework.loader_session import Session
from csrun.pytorch.framework.script import env, initialize, module, state
from csrun.pytorch.framework.step_compile import compile_step as compile
from csrun.pytorch.framework.wrapped_optimizer import optimizer

__all__ = [
    "Session",
    "amp",
    "compile",
    "core",
    "data",
    "dataloader",
    "env",
    "initialize",
    "module",
    "nn",
    "optim",
    "optimizer",
    "state",
    "utils",
]
