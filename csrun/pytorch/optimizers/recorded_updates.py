"""Optimizers recorded with the step: any kind, several in a step, in any order."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from csrun.base.errors import CsrunError, UsageError
from csrun.cirh.algorithms import Algorithm, StepNumberAttr
from csrun.executable.arrays import Array
from csrun.pytorch.errors import is_from_call, user_line
from csrun.pytorch.optimizers.initial_optimizer_state import create_state
from csrun.pytorch.optimizers.optimization import Form, Optimization, needs_closure
from csrun.pytorch.record.model_group import ModelGroup


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
        for optimizer in group.optimizers:
            params = _parameters_of(optimizer)
            self._require_members(optimizer, params)
            trained = [p for p in params if p.requires_grad]
            if self._create(optimizer, trained):
                self._known.update((id(optimizer), id(p)) for p in trained)

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
            self._known.update((own, id(p)) for p in params)
            self._create(optimizer, params)
        return bool(params)

    def _create(
        self, optimizer: torch.optim.Optimizer, params: Sequence[torch.nn.Parameter]
    ) -> bool:
        """Create the state of parameters before their first step, or its buffers. False if the
        optimizer cannot make a step yet.
        """
        if needs_closure(optimizer):
            return True
        try:
            made = create_state(optimizer, params)
        except Exception as error:
            if isinstance(error, CsrunError) or not is_from_call(error):
                raise
            return False
        states = optimizer.state if made is None else made
        self._group.states.hold(optimizer, {p: states[p] for p in params if p in states})
        return True

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


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]
