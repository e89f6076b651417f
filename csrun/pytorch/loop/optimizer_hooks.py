"""Hooks around `optimizer.step()`, and a `step` method replaced by the script."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch.optim import optimizer as torchs

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether any hook is registered; takes 0.2 us, since nearly no step has one."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torchs._global_optimizer_pre_hooks
        or torchs._global_optimizer_post_hooks
    )


@contextmanager
def step_hooks(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Arguments]:
    """Context manager that calls the pre hooks of a step, and its post hooks at the end.

    Yields the arguments of step(), the optimizer first, as the pre hooks have changed them. A hook
    that reads weights waits for the step, as the loop does.

    Source: torch.optim.Optimizer.profile_hook_step, for the order of hooks
    """
    args = (optimizer, *args)
    before = (torchs._global_optimizer_pre_hooks, optimizer._optimizer_step_pre_hooks)
    for hook in list(chain.from_iterable(hooks.values() for hooks in before)):
        found = hook(optimizer, args, kwargs)
        if found is not None:
            args, kwargs = _checked(found)
    yield args, kwargs
    after = (optimizer._optimizer_step_post_hooks, torchs._global_optimizer_post_hooks)
    for hook in list(chain.from_iterable(hooks.values() for hooks in after)):
        hook(optimizer, args, kwargs)


def _checked(found: Any) -> Arguments:
    if not isinstance(found, tuple) or len(found) != 2:
        raise UsageError(
            f"{user_line()}: a step_pre_hook must return None or a tuple of (args, kwargs), got "
            f"{type(found).__name__}"
        )
    return found


def require_own_step(optimizer: torch.optim.Optimizer) -> None:
    """Raises: UsageError for an optimizer whose step() was replaced by the script"""
    own = vars(optimizer).get("step")
    if own is not None and not hasattr(own, "_wrapped_by_lr_sched"):
        raise UsageError(
            f"{user_line()}: optimizer.step was replaced before the Session's block, which would "
            "not call it: replace it in the block, or use optimizer.register_step_pre_hook and "
            "register_step_post_hook"
        )
