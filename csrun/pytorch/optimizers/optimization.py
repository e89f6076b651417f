"""The user's optimizer: its algorithms, the numbers that it has each step, its state afterwards."""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from xdsl.utils.exceptions import VerifyException

from csrun.base.errors import UsageError
from csrun.cirh.algorithms import Algorithm, StepNumberAttr
from csrun.compiler.optimizers import SLOTS
from csrun.executable.bind import Array
from csrun.pytorch.errors import user_line
from csrun.pytorch.optimizers.base import EachStep, Rule
from csrun.pytorch.optimizers.lamb import Lamb
from csrun.pytorch.optimizers.rules import RULES
from csrun.pytorch.optimizers.watched_state import own_state
from csrun.records.torch_names import stored_name

#: For optimizers that csrun does not have, the nearest one that it has; else AdamW.
_NEAREST: Mapping[type[torch.optim.Optimizer], str] = {
    torch.optim.ASGD: "SGD",
    torch.optim.Rprop: "RMSprop",
    torch.optim.SparseAdam: "Adam, with dense gradients",
}
NUMBERS = 3  # of each group in a step: its rate, its weight decay, its momentum


class Optimization:
    """An optimizer over parameters of the model, as it is when the Session begins.

    A step has NUMBERS of each group, one group after the other.

    Raises: UsageError, with the user's line, for an optimizer or an option that csrun does not have
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self.optimizer = optimizer
        self._line = user_line()
        self._rule = self._found_rule()
        self._names: dict[int, str] = {id(p): name for name, p in model.named_parameters()}
        self._groups: list[dict[str, Any]] = optimizer.param_groups
        for number, group in enumerate(self._groups):
            self._rule.check(group, f"{self._line}: param_groups[{number}]")
        self._counted: set[str] | None = None

    def _found_rule(self) -> Rule:
        rule = RULES.get(type(self.optimizer))
        if rule is None:
            known = ", ".join(kind.__name__ for kind in RULES if kind is not Lamb)
            kind = type(self.optimizer)
            raise UsageError(
                f"{self._line}: the optimizer must be one of torch.optim's {known}, or "
                f"cbtorch.optim.Lamb, got {kind.__module__}.{kind.__qualname__}: use "
                f"{_NEAREST.get(kind, 'AdamW')}"
            )
        return rule

    def algorithms(self, trained: Collection[str]) -> dict[str, Algorithm]:
        """What updates each parameter, by its name, in a program where these get gradients.

        Raises: UsageError for a parameter that is none of the model, or a number out of its range;
        for others than the program before has, where updates count steps
        """
        self._require_same(trained)
        self._require_fixed()
        found = {}
        for number, group in enumerate(self._groups):
            each = self._each_step(number, group)
            try:
                algorithm = self._rule.algorithm(group, each)
            except VerifyException as error:
                raise UsageError(
                    f"{self._line}: param_groups[{number}]: {error}; PyTorch allows it, csrun "
                    "does not"
                ) from error
            for parameter in group["params"]:
                found[self._name(parameter, number)] = algorithm
        return found

    def _each_step(self, number: int, group: Mapping[str, Any]) -> EachStep:
        rate, decay, cycled = (StepNumberAttr.of(NUMBERS * number + k) for k in range(NUMBERS))
        is_cycled = self._rule.cycled_momentum(group) is not None
        return EachStep(
            rate, decay if group["weight_decay"] else 0.0, cycled if is_cycled else None
        )

    def _name(self, parameter: torch.Tensor, group: int) -> str:
        name = self._names.get(id(parameter))
        if name is None:
            raise UsageError(
                f"{self._line}: param_groups[{group}] has a parameter of shape "
                f"{list(parameter.shape)} that is not in the Session's model: build the optimizer "
                "from the parameters of the model that cbtorch.module returned"
            )
        return name

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Those that it updates."""
        return [p for group in self._groups for p in group["params"]]

    def numbers(self) -> tuple[float, ...]:
        """Those of the step whose `optimizer.step()` is called now.

        Raises: UsageError when an option has changed that is part of the compiled program
        """
        self._require_fixed()
        found: list[float] = []
        for group in self._groups:
            momentum = self._rule.cycled_momentum(group) or 0.0
            found += (float(group["lr"]), float(group["weight_decay"]), momentum)
        return tuple(found)

    @cached_property
    def _fixed(self) -> list[tuple[Any, ...]]:
        """The options as they are at the first step, when the loop's schedulers are made."""
        return self._options()

    def _require_fixed(self) -> None:
        """Raises: UsageError when an option has changed that is part of the compiled program"""
        if self._fixed != self._options():
            raise self._changed()

    def _require_same(self, trained: Collection[str]) -> None:
        """PyTorch counts steps for each parameter, and csrun for all."""
        counted = {
            name
            for name, parameter in self._parameters()
            if name in trained and self._rule.counts_steps(self._group_of(parameter))
        }
        if self._counted is not None and counted != self._counted:
            names = ", ".join(sorted(counted ^ self._counted))
            raise UsageError(
                f"{user_line()}: {type(self.optimizer).__name__} counts steps, so the same "
                f"parameters must be trained in all of them, got others ({names}): freeze them in "
                "all steps, or continue in a new Session with a new optimizer and model_dir"
            )
        self._counted = counted

    def _group_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        return next(g for g in self._groups if any(p is parameter for p in g["params"]))

    def _options(self) -> list[tuple[Any, ...]]:
        fixed = self._rule.fixed_options
        return [(len(g["params"]), not g["weight_decay"], *fixed(g)) for g in self._groups]

    def _changed(self) -> UsageError:
        """An error about options that are part of the compiled program."""
        before, now = ([n for n, *_ in each] for each in (self._fixed, self._options()))
        if before != now:
            return UsageError(
                f"{user_line()}: the optimizer's param_groups had {before} parameters at the first "
                f"step and now have {now}: call add_param_group before the first step, with lr=0 "
                "until the new ones are to be trained"
            )
        names = ("number of params", "weight_decay == 0", *self._rule.fixed)
        changed = [
            (name, f"{name} of param_groups[{number}] was {old} and is {new}")
            for number, groups in enumerate(zip(self._fixed, self._options(), strict=True))
            for name, old, new in zip(names, *groups, strict=True)
            if old != new
        ]
        remedy = "continue in a new Session with a new optimizer and model_dir"
        if self._rule.cycled in [name for name, _ in changed]:
            remedy = f"cycle {self._rule.cycled} with a OneCycleLR or CyclicLR made before it"
        return UsageError(
            f"{user_line()}: only lr and weight_decay of the optimizer may change after the first "
            f"step, but {'; '.join(text for _, text in changed)}: {remedy}"
        )

    def require_new(self) -> None:
        """Raises: UsageError for state that a run which begins would not know of"""
        for name, parameter in self._parameters():
            state = own_state(self.optimizer).get(parameter, {})
            began = float(state.get("step", 0)) > 0 or state.get("momentum_buffer") is not None
            if began:
                raise UsageError(
                    f"{self._line}: the optimizer has taken steps already (it has state of {name}) "
                    "and model_dir has no checkpoint of them: use a new optimizer, or the "
                    "model_dir of the run that it comes from"
                )

    def give_back(self, state: Mapping[str, Array], steps: int, trained: Collection[str]) -> None:
        """Give PyTorch's optimizer its state after so many steps, in its own form.

        state: of the store, as checkpoints name it; trained: the parameters that got gradients
        """
        group_of = {id(p): group for group in self._groups for p in group["params"]}
        for name, parameter in self._parameters():
            if name in trained:
                keys = {slot: f"{slot}/{stored_name(name)}" for slot in SLOTS}
                slots = {
                    slot: torch.from_numpy(np.array(state[key]))
                    for slot, key in keys.items()
                    if key in state
                }
                if given := self._rule.state(slots, group_of[id(parameter)], steps):
                    own_state(self.optimizer)[parameter].update(given)

    def _parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [
            (self._name(p, number), p)
            for number, group in enumerate(self._groups)
            for p in group["params"]
        ]
