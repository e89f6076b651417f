"""Optimizers recorded with the step: any kind, several in a step, in any order."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from csrun.base.errors import CsrunError, UsageError
from csrun.cirh.algorithms import Algorithm, StepNumberAttr
from csrun.executable.arrays import Array
from csrun.pytorch.errors import is_from_call, user_line
from csrun.pytorch.optimizers.initial_optimizer_state import create_state, with_wrapped
from csrun.pytorch.optimizers.optimization import Form, Optimization
from csrun.pytorch.record.model_group import ModelGroup
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor


class RecordedUpdates(Optimization):
    """The optimizers of a group, whose updates are operators of the step.

    Their tensors are buffers of the group; counts and other numbers stay PyTorch's, on the host.

    Raises: UsageError, with the user's line, for parameters that belong to no model of the group
    """

    def __init__(self, group: ModelGroup) -> None:
        self.optimizer: Any = self  # shared by the Sessions of one run
        self.state: Mapping[Any, Any] = {}  # no state besides the group's buffers
        self._group, self._line = group, user_line()
        self._known: set[tuple[int, int]] = set()  # optimizers with parameters that have a state
        self._held: dict[str, torch.Tensor] = {}  # the group's buffers of states
        for optimizer in group.optimizers:
            params = _parameters_of(optimizer)
            self._require_members(optimizer, params)
            self._create(optimizer, [p for p in params if p.requires_grad])

    def create_missing(self, optimizer: torch.optim.Optimizer) -> bool:
        """Create the state of parameters that have their first gradient, in the group's buffers.

        False if there are none.

        Raises: UsageError, with the user's line, as the constructor
        """
        own = id(optimizer)
        params = [p for p in _parameters_of(optimizer) if (own, id(p)) not in self._known]
        params = [p for p in params if p.grad is not None]
        self._require_members(optimizer, params)
        if params:
            self._create(optimizer, params)
        return bool(params)

    def _create(
        self, optimizer: torch.optim.Optimizer, params: Sequence[torch.nn.Parameter]
    ) -> None:
        """Create the state of parameters before their first step.

        If that step would then differ from PyTorch's, it creates the state itself, and the created
        tensors are only places for its results.
        """
        self._known.update((id(optimizer), id(p)) for p in params)
        if needs_closure(optimizer):
            return
        try:
            created = create_state(optimizer, params)
        except Exception as error:
            if isinstance(error, CsrunError) or not is_from_call(error):
                raise
            remedy = ", such as the one that it wraps" if _is_wrapper(optimizer) else ""
            raise UsageError(
                f"{user_line()}: {type(optimizer).__name__} cannot take a step on other gradients, "
                f"which creates its state: {type(error).__name__}: {error}: give the Session "
                f"another optimizer{remedy}"
            ) from error
        given = set(map(id, params))
        for parameter, path, state in self._states_of(optimizer):
            if id(parameter) in given:
                for name, value in _leaves(path, state):
                    if _is_of_device(value, created.of_gradients):
                        self._hold(name, value)
                if created.is_other_first:
                    state.clear()

    def _states_of(
        self, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[torch.Tensor, str, dict[str, Any]]]:
        """Yield the states of an optimizer's parameters, each with the name of its buffers."""
        names, number = self._group.name_of, self._group.optimizers.index(optimizer)
        for place, one in enumerate(with_wrapped(optimizer)):
            prefix = f"optimizer.{number}.wrapped_{place}" if place else f"optimizer.{number}"
            for parameter, state in list(one.state.items()):
                if id(parameter) in names:
                    yield parameter, f"{prefix}.{names[id(parameter)]}", state

    def _hold(self, name: str, tensor: torch.Tensor) -> None:
        self._held[name] = tensor
        self._group.hold_state(name, tensor)

    def take_new(self, optimizer: torch.optim.Optimizer, are_held: Callable[[], None]) -> None:
        """Write tensors that an optimizer's step has put into its state to the group's buffers.

        are_held: called after new buffers were created.
        """
        found = list(self._states_of(optimizer))
        is_new = False
        for _, path, state in found:
            for name, value in _leaves(path, state):
                if name not in self._held and _is_computed(value):
                    with unrecorded():
                        self._hold(name, torch.zeros(value.shape, dtype=value.dtype))
                    is_new = True
        if is_new:
            are_held()
        for _, path, state in found:
            leaves = _leaves(path, state)
            if any(self._held.get(name, x) is not x for name, x in leaves):
                kept = [self._written(name, x) for name, x in leaves]
                made = tree_unflatten(kept, tree_flatten_with_path(dict(state))[1])
                state.update(made)

    def _written(self, name: str, value: Any) -> Any:
        """Return the buffer of a state's tensor, with its value; the value itself without one."""
        held = self._held.get(name)
        if held is None or held is value:
            return value
        with torch.no_grad():
            return held.copy_(value)

    def _require_members(
        self, optimizer: torch.optim.Optimizer, params: Sequence[torch.nn.Parameter]
    ) -> None:
        """Raises: UsageError for a parameter that belongs to no model of the group"""
        names = self._group.name_of
        if any(id(p) not in names for p in params):
            number = self._group.optimizers.index(optimizer)
            raise UsageError(
                f"{user_line()}: optimizer {number} of the Session has a parameter that belongs "
                "to none of its models: pass all trained models to the Session"
            )

    def check_options(self) -> None:
        """Do nothing: PyTorch's own code computes with the options."""

    def algorithms(self) -> dict[str, Algorithm]:
        """Return an empty mapping: the step has the updates."""
        return {}

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters that the optimizers update."""
        return [p for one in self._group.optimizers for p in _parameters_of(one)]

    def form(self, trained: frozenset[str]) -> Form:
        """Return an empty form: the step has the updates."""
        return ()

    def earlier_updates(self, trained: frozenset[str]) -> dict[str, StepNumberAttr]:
        """Return an empty mapping: PyTorch's own code counts updates."""
        return {}

    def numbers(self, trained: frozenset[str]) -> tuple[float, ...]:
        """Return no numbers: changing ones are inputs of the step."""
        return ()

    def adds_numbers(self, trained: frozenset[str]) -> bool:
        """Return False: steps have no numbers."""
        return False

    def loaded(self) -> tuple[dict[str, torch.Tensor], int]:
        """Return an empty state: that of the optimizers is in the group's buffers."""
        return {}, 0

    def copy_back(self, state: Mapping[str, Array], steps: int, skipped: int = 0) -> None:
        """Do nothing: the group's buffers are the optimizers' own tensors."""


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """True for an optimizer that evaluates the loss repeatedly, such as LBFGS."""
    closure = signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _is_wrapper(optimizer: torch.optim.Optimizer) -> bool:
    """True for an optimizer that has another one as an attribute."""
    return any(isinstance(each, torch.optim.Optimizer) for each in vars(optimizer).values())


def _leaves(path: str, state: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the items of a state, and of lists in it, each with the name of its buffer."""
    words = (
        (".".join(str(getattr(k, "key", getattr(k, "idx", k))).replace(".", "_") for k in keys), x)
        for keys, x in tree_flatten_with_path(dict(state))[0]
    )
    return [(f"{path}.{word}", value) for word, value in words]


def _is_of_device(value: Any, of_gradients: Collection[int]) -> bool:
    """True for a tensor of an optimizer's state that the step computes with."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return value.dim() > 0 or id(value) in of_gradients


def _is_computed(value: Any) -> bool:
    """True for a tensor that a step has put into a state."""
    return isinstance(value, TracedTensor) or _is_of_device(value, ())
