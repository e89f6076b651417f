"""A script of the Model Zoo in its CPU mode, with the float types and learning rates of csrun.

usage: modelzoo_cpu.py CHECKOUT run.py ARGUMENTS; outside of the data set float16 is float32, and a
list of schedules has the rates that docs/modelzoo.md describes
"""

import runpy
import sys
from bisect import bisect_right

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

_, checkout, script, *arguments = sys.argv
sys.argv = [script, *arguments]
sys.path.insert(0, checkout)


class Single(TorchFunctionMode):
    """Replacement of float16 by float32, except in a worker of the data set."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if torch.utils.data.get_worker_info() is not None:
            return func(*args, **(kwargs or {}))
        func = torch.Tensor.float if func is torch.Tensor.half else func
        args, kwargs = (single(args), single(kwargs or {}))
        return func(*args, **kwargs)


def single(given):
    return tree_map(lambda x: torch.float32 if x is torch.float16 else x, given)


def next_batch(batches, take=_MultiProcessingDataLoaderIter._next_data):
    """A batch as its worker has sent it."""
    with torch._C.DisableTorchFunction():
        return take(batches)


def set_rate(schedules):
    """Set the rate of a list of schedules, each counting from its start."""
    step = schedules.last_epoch
    place = bisect_right(schedules._milestones, step)
    schedule = schedules._schedulers[place]
    began = 0 if schedule.disable_lr_steps_reset or not place else schedules._milestones[place - 1]
    rate = schedule.lr_function(step - began)
    for group in schedules.optimizer.param_groups:
        group["lr"] = rate
    schedules._last_lr = [rate]


def step(schedules):
    schedules.last_epoch += 1
    set_rate(schedules)


from modelzoo.common.pytorch.optim import lr_scheduler  # noqa: E402

_MultiProcessingDataLoaderIter._next_data = next_batch
lr_scheduler.SequentialLR.step = step
lr_scheduler.SequentialLR._init_step = set_rate
with Single():
    runpy.run_path(script, run_name="__main__")
