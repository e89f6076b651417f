"""Monkey patches of the user's model and optimizer while a Session's block runs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Self

import torch

from csrun.pytorch.loop.optimizer_hooks import has_step_hooks, require_own_step, step_hooks
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.optimizers.watched_state import WatchedState

if TYPE_CHECKING:
    from csrun.pytorch.loop.session_loop import SessionLoop


class Patches:
    """Context in which methods of the user's objects go to the Session's loop.

    state_dict() of both returns the weights that are in the store.
    """

    def __init__(
        self, loop: "SessionLoop", model: torch.nn.Module, optimization: Optimization | None
    ) -> None:
        self._loop, self._model, self._optimization = loop, model, optimization
        self._had: dict[str, Any] = {}  # of the model's own, in the place of what is taken over
        self._open = ExitStack()

    def __enter__(self) -> Self:
        loop, model, user = self._loop, self._model, self._loop.user

        def forward(*args: Any, **kwargs: Any) -> Any:
            return loop.call_model(args, kwargs)

        def getstate() -> object:
            """Return the model's state for copies and pickles, without the patches."""
            user.give_back()
            with self._given_back():
                state = model.__getstate__()
                return dict(state) if isinstance(state, dict) else state

        def load_state(*args: Any, **kwargs: Any) -> Any:
            if user.is_apart and user.note_write("the model's state_dict"):
                user.give_back()  # or the first read after it would
            with self._given_back():
                return model.load_state_dict(*args, **kwargs)

        self._replace(model, "forward", forward)
        self._replace(model, "load_state_dict", load_state)
        self._replace(model, "__getstate__", getstate)
        if self._optimization is None:
            return self
        optimizer = self._optimization.optimizer
        require_own_step(optimizer)
        zero_grad, states = optimizer.zero_grad, (model.state_dict, optimizer.state_dict)
        load_own_state = optimizer.load_state_dict

        def step(own: Any, *args: Any, **kwargs: Any) -> None:
            own._opt_called = True  # which schedulers ask for
            if not has_step_hooks(own):
                loop.optimizer_step(*args, **kwargs)
                return
            with step_hooks(own, args, kwargs) as (args, kwargs):
                loop.optimizer_step(*args[1:], **kwargs)

        def zero(_: Any, set_to_none: bool = True) -> None:
            loop.zero_grad(zero_grad, set_to_none)

        def model_state(*args: Any, **kwargs: Any) -> Any:
            user.give_back()
            return user.with_memory(states[0](*args, **kwargs))

        def optimizer_state(*args: Any, **kwargs: Any) -> Any:
            user.give_back()
            return states[1](*args, **kwargs)

        def load_optimizer_state(*args: Any, **kwargs: Any) -> None:
            user.load_optimizer_state(partial(load_own_state, *args, **kwargs))

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        user.optimizer_state = self._open.enter_context(WatchedState(user, optimizer).in_place())
        self._replace(optimizer, "step", MethodType(step, optimizer))
        self._replace(optimizer, "zero_grad", MethodType(zero, optimizer))
        self._replace(model, "state_dict", model_state)
        self._replace(optimizer, "state_dict", optimizer_state)
        self._replace(optimizer, "load_state_dict", load_optimizer_state)
        return self

    @contextmanager
    def _given_back(self) -> Iterator[None]:
        """Have the model's own methods back, for a moment."""
        attributes, ours = self._model.__dict__, {}
        for name in ("forward", "state_dict", "load_state_dict", "__getstate__"):
            if name in attributes:
                ours[name] = attributes.pop(name)
        attributes.update(self._had)
        try:
            yield
        finally:
            attributes.update(ours)

    def _replace(self, owner: Any, name: str, ours: Any) -> None:
        had = owner.__dict__.get(name)
        if owner is self._model and had is not None:
            self._had[name] = had
        owner.__dict__[name] = ours
        self._open.callback(_give_back, owner, name, had)

    def __exit__(self, *error: object) -> None:
        self._open.close()


def _give_back(owner: Any, name: str, had: Any) -> None:
    if had is None:
        owner.__dict__.pop(name, None)
    else:
        owner.__dict__[name] = had
