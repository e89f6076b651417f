"""Monkey patches of the user's model and optimizer while a Session's block runs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Self

import torch

from csrun.pytorch.loop.optimizer_hooks import has_step_hooks, require_own_step, step_hooks
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.optimizers.state_proxy import StateProxy

if TYPE_CHECKING:
    from csrun.pytorch.loop.session_loop import SessionLoop


class Patches:
    """Context in which methods of the user's objects call the Session's loop.

    state_dict() of both returns the weights in the store.
    """

    def __init__(
        self, loop: "SessionLoop", model: torch.nn.Module, optimization: Optimization | None
    ) -> None:
        self._loop, self._model, self._optimization = loop, model, optimization
        self._had: dict[int, dict[str, Any]] = {}  # the models' own methods, which ours replace
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._patch_model(self._model, self._loop.call_model)
        if self._optimization is not None:
            self._patch_state_dict(self._model)
            self._patch_optimizer(self._optimization.optimizer)
        return self

    def _patch_model(
        self,
        model: torch.nn.Module,
        call: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    ) -> None:
        user = self._loop.user

        def forward(*args: Any, **kwargs: Any) -> Any:
            return call(args, kwargs)

        def getstate() -> object:
            """Return the model's state for copies and pickles, without the patches."""
            user.copy_back()
            with self._given_back(model):
                state = model.__getstate__()
                return dict(state) if isinstance(state, dict) else state

        def load_state(*args: Any, **kwargs: Any) -> Any:
            if user.is_in_store and user.note_write("the model's state_dict"):
                user.copy_back()  # otherwise the first read after it would
            with self._given_back(model):
                return model.load_state_dict(*args, **kwargs)

        self._replace(model, "forward", forward)
        self._replace(model, "load_state_dict", load_state)
        self._replace(model, "__getstate__", getstate)

    def _patch_state_dict(self, model: torch.nn.Module) -> None:
        user, state_dict = self._loop.user, model.state_dict

        def model_state(*args: Any, **kwargs: Any) -> Any:
            user.copy_back()
            return user.with_memory(state_dict(*args, **kwargs))

        self._replace(model, "state_dict", model_state)

    def _patch_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        loop, user = self._loop, self._loop.user
        require_own_step(optimizer)
        zero_grad, state_dict = optimizer.zero_grad, optimizer.state_dict
        load_own_state, add_own_group = optimizer.load_state_dict, optimizer.add_param_group

        def step(own: Any, *args: Any, **kwargs: Any) -> Any:
            own._opt_called = True  # which schedulers check
            if not has_step_hooks(own):
                return loop.optimizer_step(*args, **kwargs)
            with step_hooks(own, args, kwargs) as (args, kwargs):
                return loop.optimizer_step(*args[1:], **kwargs)

        def zero(_: Any, set_to_none: bool = True) -> None:
            loop.zero_grad(zero_grad, set_to_none)

        def add_group(param_group: dict[str, Any]) -> None:
            add_own_group(param_group)
            loop.note_group(optimizer.param_groups[-1])

        def optimizer_state(*args: Any, **kwargs: Any) -> Any:
            user.copy_back()
            return state_dict(*args, **kwargs)

        def load_optimizer_state(*args: Any, **kwargs: Any) -> None:
            user.load_optimizer_state(partial(load_own_state, *args, **kwargs))

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        user.optimizer_state = self._open.enter_context(StateProxy(user, optimizer).in_place())
        self._replace(optimizer, "step", MethodType(step, optimizer))
        self._replace(optimizer, "zero_grad", MethodType(zero, optimizer))
        self._replace(optimizer, "add_param_group", add_group)
        self._replace(optimizer, "state_dict", optimizer_state)
        self._replace(optimizer, "load_state_dict", load_optimizer_state)

    @contextmanager
    def _given_back(self, model: torch.nn.Module) -> Iterator[None]:
        """Context manager that temporarily restores a model's own methods."""
        attributes, ours = model.__dict__, {}
        for name in ("forward", "state_dict", "load_state_dict", "zero_grad", "__getstate__"):
            if name in attributes:
                ours[name] = attributes.pop(name)
        attributes.update(self._had.get(id(model), {}))
        try:
            yield
        finally:
            attributes.update(ours)

    def _replace(self, owner: Any, name: str, ours: Any) -> None:
        had = owner.__dict__.get(name)
        if isinstance(owner, torch.nn.Module) and had is not None:
            self._had.setdefault(id(owner), {})[name] = had
        owner.__dict__[name] = ours
        self._open.callback(_give_back, owner, name, had)

    def __exit__(self, *error: object) -> None:
        self._open.close()


def _give_back(owner: Any, name: str, had: Any) -> None:
    if had is None:
        owner.__dict__.pop(name, None)
    else:
        owner.__dict__[name] = had
