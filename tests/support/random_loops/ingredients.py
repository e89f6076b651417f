"""Changes between passes, hooks, optimizers and schedulers of a drawn loop, by name."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from support.random_loops.models import CLASSES, Loop, Scaled, set_scale
from torch import optim

CHANGED_PASS = 1  # the first pass that differs from pass 0

Change = Callable[[Loop, int], None]  # called before each pass with its number


def scale_object(loop: Loop, number: int) -> None:
    set_scale(loop, 0.5**number)


def curriculum(loop: Loop, number: int) -> None:
    if isinstance(loop.data, Scaled):
        loop.data.scale = 1.0 + number


def pseudo_labels(loop: Loop, number: int) -> None:
    labels = loop.data.y if isinstance(loop.data, Scaled) else loop.data.tensors[1]
    if number >= CHANGED_PASS:
        labels.copy_((labels + 1) % CLASSES)


def refreshed_inputs(loop: Loop, number: int) -> None:
    if number >= CHANGED_PASS:
        (loop.data.x if isinstance(loop.data, Scaled) else loop.data.tensors[0]).mul_(1.5)


def freeze_first(loop: Loop, number: int) -> None:
    loop.plain.hidden.requires_grad_(number == 0)


def unfreeze_first(loop: Loop, number: int) -> None:
    loop.plain.hidden.requires_grad_(number > 0)


def clear_state(loop: Loop, number: int) -> None:
    if number >= CHANGED_PASS:
        loop.optimizer.state.clear()


def replace_state(loop: Loop, number: int) -> None:
    if number >= CHANGED_PASS:
        loop.optimizer.state = defaultdict(dict)


def zero_state(loop: Loop, number: int) -> None:
    if number >= CHANGED_PASS:
        for state in loop.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and name != "step":
                    value.zero_()


def hook_forward(loop: Loop, number: int) -> None:
    if number == CHANGED_PASS:
        loop.plain.hidden.register_forward_hook(lambda module, args, out: out * 0.5)


def hook_gradient(loop: Loop, number: int) -> None:
    if number == CHANGED_PASS:
        loop.plain.out.weight.register_hook(lambda gradient: gradient * 0.5)


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        scale_object, curriculum, pseudo_labels, refreshed_inputs, freeze_first, unfreeze_first,
        clear_state, replace_state, zero_state, hook_forward, hook_gradient,
    )
}  # fmt: skip


def halve_rate(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.98


def halve_gradients(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


def clamp_weights(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.clamp_(-0.3, 0.3)


def replace_step(optimizer: optim.Optimizer) -> None:
    step = optimizer.step

    def slower(*args: Any, **kwargs: Any) -> Any:
        halve_rate(optimizer, args, kwargs)
        return step(*args, **kwargs)

    optimizer.step = slower  # type: ignore[method-assign]


HOOKS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "none": lambda optimizer: None,
    "post hook": lambda optimizer: optimizer.register_step_post_hook(halve_rate),
    "pre hook": lambda optimizer: optimizer.register_step_pre_hook(halve_gradients),
    "clamping hook": lambda optimizer: optimizer.register_step_post_hook(clamp_weights),
    "replaced step": replace_step,
}

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "momentum": lambda p: optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.05),
    "Nesterov": lambda p: optim.SGD(p, 0.05, momentum=0.8, nesterov=True),
    # A larger eps: a gradient that is 0 in theory is not divided by its own rounding.
    "Adam": lambda p: optim.Adam(p, 0.01, eps=1e-3, weight_decay=0.01),
    "AdamW": lambda p: optim.AdamW(p, 0.01, eps=1e-3),
    "Adagrad": lambda p: optim.Adagrad(p, 0.05, eps=1e-3, weight_decay=0.01),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01, eps=1e-3, momentum=0.5),
}

SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "none": lambda optimizer: None,
    "step": lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 5, 0.5),
    "cosine": lambda optimizer: optim.lr_scheduler.CosineAnnealingLR(optimizer, 12),
    "exponential": lambda optimizer: optim.lr_scheduler.ExponentialLR(optimizer, 0.95),
    "plateau": lambda optimizer: optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
}
