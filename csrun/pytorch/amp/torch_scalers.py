"""PyTorch's own loss scalers in a Session's block: torch.amp.GradScaler and its subclasses.

Each is backed by a GradScaler of csrun's with the constants of torch.amp.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch

from csrun.base.errors import UsageError
from csrun.executable.loss_scale import FACTOR, Dialect, ScaleState
from csrun.pytorch.amp.grad_scaler import GradScaler
from csrun.pytorch.errors import user_line

_Theirs = torch.amp.GradScaler
_load = _Theirs.load_state_dict
_FACTORS = {"growth_factor": FACTOR, "backoff_factor": 1 / FACTOR}


class _TorchScaler(GradScaler):
    """Scaler with the constants of torch.amp.

    given: numbers of PyTorch's scaler, as csrun has read or set them.
    """

    dialect: Dialect = "torch.amp"
    given: tuple[Any, ...] = ()


_ours: WeakKeyDictionary[Any, _TorchScaler] = WeakKeyDictionary()


def _of(theirs: Any) -> GradScaler | None:
    """Return csrun's scaler for one of PyTorch's; None for a disabled one.

    Raises: UsageError for unsupported factors, and for numbers that are set after the first step
    """
    if not theirs._enabled:
        return None
    known = _ours.get(theirs)
    if known is None or known.given != _numbers_of(theirs):
        if known is not None and known.is_applied:
            raise UsageError(
                f"{user_line()}: the scale or an option of a GradScaler was set after the first "
                "step, and the run continues with its own: set it before the first Session"
            )
        _ours[theirs] = _made(theirs)
    return _ours[theirs]


def _numbers_of(theirs: Any) -> tuple[Any, ...]:
    """Return the scale, its counter and the options."""
    is_used = theirs._scale is not None
    scale = theirs._scale.item() if is_used else theirs._init_scale
    steps = theirs._growth_tracker.item() if is_used else theirs._init_growth_tracker
    options = theirs._growth_factor, theirs._backoff_factor, theirs._growth_interval
    return scale, steps, *options


def _made(theirs: Any) -> _TorchScaler:
    given = {name: getattr(theirs, f"_{name}") for name in _FACTORS}
    if odd := [name for name, factor in _FACTORS.items() if given[name] != factor]:
        raise UsageError(
            f"{user_line()}: GradScaler: {odd[0]} must be {_FACTORS[odd[0]]}, got {given[odd[0]]}"
        )
    made = _TorchScaler("dynamic", theirs._init_scale, theirs._growth_interval)
    made.given = _numbers_of(theirs)
    scale, steps, *_ = made.given
    return made.begin_at(ScaleState(scale, steps))


def _state_dict(ours: GradScaler, theirs: Any) -> dict[str, Any]:
    """Return the state in PyTorch's form."""
    state = ours.state
    names = {"scale": state.scale, **_FACTORS, "growth_interval": theirs._growth_interval}
    return {**names, "_growth_tracker": int(state.steps)}


def _load_state_dict(ours: GradScaler, theirs: Any, state: dict[str, Any]) -> None:
    """Load the scale, its counter and the interval, with PyTorch's checks."""
    ours.require_unapplied()
    _load(theirs, state)


_METHODS: dict[str, Callable[..., Any]] = {
    "scale": lambda ours, theirs, outputs: ours.scale(outputs),
    "unscale_": lambda ours, theirs, optimizer: None,
    "step": lambda ours, theirs, optimizer, *args, **kwargs: ours.step(optimizer, *args, **kwargs),
    "update": lambda ours, theirs, new_scale=None: ours.update(new_scale),
    "get_scale": lambda ours, theirs: ours.get_scale(),
    "is_enabled": lambda ours, theirs: True,
    "state_dict": _state_dict,
    "load_state_dict": _load_state_dict,
}


@contextmanager
def redirect_torch_scalers() -> Iterator[None]:
    """Context manager that replaces the methods of enabled PyTorch scalers by csrun's.

    Afterwards these scalers have csrun's scale.
    """
    with ExitStack() as opened:
        for name, method in _METHODS.items():
            opened.enter_context(patch.object(_Theirs, name, _replaced(name, method)))
        try:
            yield
        finally:
            for theirs, ours in list(_ours.items()):
                _give_back(theirs, ours)


def _replaced(name: str, method: Callable[..., Any]) -> Any:
    original = getattr(_Theirs, name)

    @wraps(original)
    def called(this: Any, *args: Any, **kwargs: Any) -> Any:
        ours = _of(this)
        if ours is None:
            return original(this, *args, **kwargs)
        return method(ours, this, *args, **kwargs)

    return called


def _give_back(theirs: Any, ours: _TorchScaler) -> None:
    if ours.is_applied:
        state = ours.state
        theirs._init_scale, theirs._init_growth_tracker = state.scale, int(state.steps)
        theirs._scale = theirs._growth_tracker = None
        ours.given = _numbers_of(theirs)
