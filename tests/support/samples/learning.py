"""PyTorch's optimizers as csrun's: what its database's options are here.

Each takes (nn, **options of PyTorch's), those that it leaves out being PyTorch's defaults.
"""

from collections.abc import Callable
from typing import Any

from support.samples.row import only


def sgd(nn, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False):
    only(maximize=(maximize, False), dampening=(dampening, 0.0))
    return nn.SGD(lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)


def adam(nn, lr=1e-3, weight_decay=0.0, amsgrad=False, maximize=False):
    only(maximize=(maximize, False), amsgrad=(amsgrad, False))
    return nn.Adam(lr, weight_decay=weight_decay)


def adamw(nn, lr=1e-3, weight_decay=0.01, amsgrad=False, maximize=False):
    only(maximize=(maximize, False), amsgrad=(amsgrad, False))
    return nn.AdamW(lr, weight_decay=weight_decay)


def adagrad(
    nn, lr=1e-2, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, maximize=False
):
    only(maximize=(maximize, False))
    first = initial_accumulator_value
    return nn.Adagrad(lr, lr_decay=lr_decay, weight_decay=weight_decay, initial_accumulator=first)


def rmsprop(nn, lr=1e-2, weight_decay=0.0, momentum=0.0, centered=False, maximize=False):
    only(maximize=(maximize, False))
    return nn.RMSProp(lr, weight_decay=weight_decay, momentum=momentum, centered=centered)


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": sgd,
    "Adam": adam,
    "AdamW": adamw,
    "Adagrad": adagrad,
    "RMSprop": rmsprop,
}
