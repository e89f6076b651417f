"""cerebras_torch: a PyTorch training loop on a CS system. Implemented in `csrun.pytorch`.

import cerebras_torch as cbtorch
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        "cerebras_torch needs PyTorch, which is not installed: pip install 'torch==2.13.*'",
        name="torch",
    )

from cerebras_torch import amp, optim
from csrun.pytorch.deferred_init.meta_init import meta_init
from csrun.pytorch.helpers import master_print, save, step_closure, summarize_scalar
from csrun.pytorch.session import Session
from csrun.pytorch.settings import env, initialize
from csrun.pytorch.user import dataloader, module

__all__ = [
    "Session",
    "amp",
    "dataloader",
    "env",
    "initialize",
    "master_print",
    "meta_init",
    "module",
    "optim",
    "save",
    "step_closure",
    "summarize_scalar",
]
