"""Monkey patches of several models and optimizers while the block of their Session runs."""

from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Self

import torch

from csrun.pytorch.loop.patches import Patches
from csrun.pytorch.record.model_group import ModelGroup

if TYPE_CHECKING:
    from csrun.pytorch.loop.updating_loop import UpdatingLoop


class GroupPatches(Patches):
    """Context in which methods of a group's models and optimizers call the Session's loop."""

    def __init__(self, loop: "UpdatingLoop", group: ModelGroup) -> None:
        super().__init__(loop, group, None)
        self._updating, self._group = loop, group

    def __enter__(self) -> Self:
        for number, model in enumerate(self._group.models):
            self._patch_member(number, model)
        for optimizer in self._group.optimizers:
            self._patch_recorded(optimizer)
        return self

    def _patch_member(self, number: int, model: torch.nn.Module) -> None:
        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._loop.call_model((number, *args), kwargs)

        own_zero = model.zero_grad

        def zero(set_to_none: bool = True) -> None:
            self._updating.clear(model.parameters(), own_zero, set_to_none)

        self._patch_model(model, call)
        self._patch_state_dict(model)
        self._replace(model, "zero_grad", zero)

    def _patch_recorded(self, optimizer: torch.optim.Optimizer) -> None:
        loop, user = self._updating, self._loop.user
        own_step, own_zero = optimizer.step, optimizer.zero_grad
        state_dict, load = optimizer.state_dict, optimizer.load_state_dict

        def step(own: Any, *args: Any, **kwargs: Any) -> Any:
            own._opt_called = True  # which schedulers check
            return loop.update(own, own_step, args, kwargs)

        def zero(own: Any, set_to_none: bool = True) -> None:
            params = (p for group in own.param_groups for p in group["params"])
            loop.clear(params, own_zero, set_to_none)

        def optimizer_state(*args: Any, **kwargs: Any) -> Any:
            user.copy_back()
            return state_dict(*args, **kwargs)

        def load_state(*args: Any, **kwargs: Any) -> None:
            loop.load_state(optimizer, partial(load, *args, **kwargs))

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        self._replace(optimizer, "step", MethodType(step, optimizer))
        self._replace(optimizer, "zero_grad", MethodType(zero, optimizer))
        self._replace(optimizer, "state_dict", optimizer_state)
        self._replace(optimizer, "load_state_dict", load_state)
