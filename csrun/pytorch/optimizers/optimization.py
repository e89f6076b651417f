"""The user's optimizer in a Session: its algorithms, per-step numbers and state."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from xdsl.utils.exceptions import VerifyException

from csrun.base.errors import UsageError
from csrun.cirh.algorithms import Algorithm, StepNumberAttr
from csrun.compiler.optimizers import SLOTS
from csrun.executable.arrays import Array
from csrun.executable.loss_scale import LossScaling, ScaleState
from csrun.pytorch.errors import user_line
from csrun.pytorch.optimizers.base import GroupNumbers, OptimizerRule
from csrun.pytorch.optimizers.own_classes import OwnClassRule, rule_of_own_class
from csrun.pytorch.optimizers.proof import require_rule
from csrun.pytorch.optimizers.rules import RULES
from csrun.pytorch.optimizers.watched_state import unwatched_state
from csrun.records.torch_names import stored_name

NUMBERS = 3  # numbers of each group in a step: learning rate, weight decay, momentum


@dataclass(frozen=True)
class LossScale:
    """Scaling of the loss: its rule, the initial state, and a limit of the gradients' norm."""

    rule: LossScaling
    first: ScaleState
    clip_norm: float | None = None


def rule_of(optimizer: torch.optim.Optimizer) -> OptimizerRule | None:
    """Return the rule of an optimizer; None for one that is recorded with the step."""
    return RULES.get(type(optimizer)) or rule_of_own_class(optimizer)


class Optimization:
    """An optimizer over the model's parameters, as it is when the Session begins.

    A step has NUMBERS of each group, group after group.

    scaler: the script's object that scales the loss.
    is_scaling_known: a step has shown whether there is one.
    scaled: None without scaling.

    Raises: UsageError, with the user's line, for an optimizer or option that is not supported
    """

    scaler: object | None = None
    is_scaling_known = False
    scaled: LossScale | None = None

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self.optimizer = optimizer
        self._line = user_line()
        self._rule = self._find_rule()
        self._names: dict[int, str] = {id(p): name for name, p in model.named_parameters()}
        self.check_options()
        if isinstance(self._rule, OwnClassRule):
            require_rule(optimizer, self._rule, self._line)
        self._counted: set[str] | None = None

    @property
    def rule(self) -> OptimizerRule:
        """The rule of the optimizer."""
        return self._rule

    def groups(self) -> dict[str, tuple[int, dict[str, Any]]]:
        """Return the number and the group of each parameter, by its name."""
        return {
            self._name(p, number): (number, group)
            for number, group in enumerate(self._groups)
            for p in group["params"]
        }

    @property
    def _groups(self) -> list[dict[str, Any]]:
        """Parameter groups; load_state_dict creates new ones."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    def check_options(self) -> None:
        """Raises: UsageError for an option of a group that is not supported"""
        for number, group in enumerate(self._groups):
            self._rule.check(group, f"{self._line}: param_groups[{number}]")

    def _find_rule(self) -> OptimizerRule:
        rule = rule_of(self.optimizer)
        assert rule is not None, "others are recorded with the step"
        return rule

    def algorithms(self, trained: Collection[str]) -> dict[str, Algorithm]:
        """Return each parameter's algorithm by name; `trained` are those with gradients.

        Raises: UsageError for a parameter outside the model, an option out of range, or a change of
        the trained parameters if updates count steps
        """
        self._require_same_trained(trained)
        self._require_fixed()
        found = {}
        for number, group in enumerate(self._groups):
            each = self._numbers_of(number, group)
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

    def _numbers_of(self, number: int, group: Mapping[str, Any]) -> GroupNumbers:
        rate, decay, cycled = (StepNumberAttr.of(NUMBERS * number + k) for k in range(NUMBERS))
        is_cycled = self._rule.cycled_momentum(group) is not None
        return GroupNumbers(
            rate, decay if self._rule.decay(group) else 0.0, cycled if is_cycled else None
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
        """The parameters that it updates."""
        return [p for group in self._groups for p in group["params"]]

    def numbers(self) -> tuple[float, ...]:
        """Return the per-step numbers when `optimizer.step()` is called.

        Raises: UsageError if an option that is compiled into the program has changed
        """
        self._require_fixed()
        found: list[float] = []
        for group in self._groups:
            momentum = self._rule.cycled_momentum(group) or 0.0
            found += (float(group["lr"]), self._rule.decay(group), momentum)
        return tuple(found)

    @cached_property
    def _fixed(self) -> list[tuple[Any, ...]]:
        """Options at the first step, when the loop's schedulers exist."""
        return self._options()

    def _require_fixed(self) -> None:
        """Raises: UsageError if an option that is compiled into the program has changed"""
        if self._fixed != self._options():
            raise self._changed_error()

    def _require_same_trained(self, trained: Collection[str]) -> None:
        """Raises: UsageError for a change of the trained parameters, if updates count steps"""
        counted = {
            name
            for name, (_, group) in self.groups().items()
            if name in trained and self._rule.counts_steps(group)
        }
        if self._counted is not None and counted != self._counted:
            names = ", ".join(sorted(counted ^ self._counted))
            raise UsageError(
                f"{user_line()}: {type(self.optimizer).__name__} counts steps, so the same "
                f"parameters must be trained in all of them, got others ({names}): freeze them in "
                "all steps, or give the Session lists, as Session([model], [optimizer])"
            )
        self._counted = counted

    def _options(self) -> list[tuple[Any, ...]]:
        rule = self._rule
        return [(len(g["params"]), not rule.decay(g), *rule.fixed_options(g)) for g in self._groups]

    def _changed_error(self) -> UsageError:
        """Return the error about changed options that are compiled into the program."""
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
        """Raises: UsageError for optimizer state that a new run does not have"""
        for name, parameter in self._parameters():
            state = unwatched_state(self.optimizer).get(parameter, {})
            if self._rule.has_begun(state):
                raise UsageError(
                    f"{self._line}: the optimizer has taken steps already (it has state of {name}) "
                    "and model_dir has no checkpoint of them: use a new optimizer, or the "
                    "model_dir of the run that it comes from"
                )

    def loaded(self) -> tuple[dict[str, torch.Tensor], int]:
        """Return the state that the script has loaded, by its names in the store, and its steps."""
        found: dict[str, torch.Tensor] = {}
        steps, groups = 0, self.groups()
        for name, parameter in self._parameters():
            state = unwatched_state(self.optimizer).get(parameter, {})
            if not self._rule.has_begun(state):
                continue
            _, group = groups[name]
            slots = self._rule.slots(state, group)
            steps = max(steps, self._rule.steps_of(state, group))
            found.update((f"{slot}/{stored_name(name)}", x) for slot, x in slots.items())
        return found, steps

    def give_back(self, state: Mapping[str, Array], steps: int, trained: Collection[str]) -> None:
        """Write the state after this many steps into PyTorch's optimizer, in its own form.

        state: of the store, by the names of checkpoints.
        trained: parameters that had gradients.
        """
        groups = self.groups()
        for name, parameter in self._parameters():
            if name in trained:
                keys = {slot: f"{slot}/{stored_name(name)}" for slot in SLOTS}
                slots = {
                    slot: torch.from_numpy(np.array(state[key]))
                    for slot, key in keys.items()
                    if key in state
                }
                if given := self._rule.state(slots, groups[name][1], steps):
                    unwatched_state(self.optimizer)[parameter].update(given)

    def _parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [
            (self._name(p, number), p)
            for number, group in enumerate(self._groups)
            for p in group["params"]
        ]
