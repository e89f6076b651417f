"""The user's optimizer in a Session: its algorithms, per-step numbers and state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
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
from csrun.pytorch.optimizers.custom_classes import CustomClassRule, rule_of_custom_class
from csrun.pytorch.optimizers.known_numbers import KnownNumbers
from csrun.pytorch.optimizers.rule_check import require_plain_closure, require_rule
from csrun.pytorch.optimizers.rules import RULES
from csrun.pytorch.optimizers.state_proxy import unwrapped_state
from csrun.pytorch.optimizers.update_counts import UpdateCounts
from csrun.records.torch_names import stored_name

NUMBERS = 3  # numbers of each group in a step: learning rate, weight decay, momentum
#: Of each updated parameter: its group, and the place of its count in the step's numbers.
Form = tuple[tuple[str, int, int | None], ...]


@dataclass(frozen=True)
class LossScale:
    """Scaling of the loss: its rule, the initial state, and a limit of the gradients' norm."""

    rule: LossScaling
    first: ScaleState
    clip_norm: float | None = None


def rule_of(optimizer: torch.optim.Optimizer) -> OptimizerRule | None:
    """Return the rule of an optimizer; None for one that is recorded with the step."""
    if type(optimizer) in RULES:
        return RULES[type(optimizer)]
    return None if needs_closure(optimizer) else rule_of_custom_class(optimizer)


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """True for an optimizer that evaluates the loss repeatedly, such as LBFGS."""
    closure = signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


class Optimization:
    """An optimizer over the model's parameters, as it is when the Session begins.

    A step has NUMBERS of each group, and counts of updates for parameters that some steps have not
    updated. The places of these numbers never change; new ones follow.

    has_added_groups: groups were added after the first step, and may have state of their own.
    scaler: the script's object that scales the loss.
    is_scaling_known: a step has shown whether there is one.
    scaled: None without scaling.

    Raises: UsageError, with the user's line, for an optimizer or option that is not supported
    """

    scaler: object | None = None
    is_scaling_known = has_added_groups = False
    _takes_closure = False  # known for a script's own class
    scaled: LossScale | None = None

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self.optimizer = optimizer
        self._line = user_line()
        self._rule = self._find_rule()
        self._names: dict[int, str] = {id(p): name for name, p in model.named_parameters()}
        self._places: dict[tuple[str, int], int] = {}  # of each group and count
        self._forms: dict[frozenset[str], tuple[int, Form]] = {}
        self._taken = 0  # groups that steps update
        self._updates = UpdateCounts()
        self._known_numbers = KnownNumbers()
        self._add_groups()
        self.check_options()
        if isinstance(self._rule, CustomClassRule):
            require_rule(optimizer, self._rule, self._line)

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
        """Parameter groups that steps update; load_state_dict creates new ones."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups[: self._taken]

    @property
    def has_new_groups(self) -> bool:
        """True if the script has added groups that no step has updated."""
        return len(self.optimizer.param_groups) > self._taken

    def take_groups(self) -> list[torch.Tensor]:
        """Update the added groups from the next step on; return their parameters.

        No step may be queued.

        Raises: UsageError for an option that is not supported, or a parameter outside the model
        """
        self._require_fixed()
        first, self.has_added_groups = self._add_groups(), True
        self._fixed += self._options()[first:]
        self.check_options()
        return [p for group in self._groups[first:] for p in group["params"]]

    def _add_groups(self) -> int:
        """Give places to the numbers of new groups; return the first one."""
        first, self._taken = self._taken, len(self.optimizer.param_groups)
        for number in range(first, self._taken):
            self._places["group", number] = self._width
        self._updates.add(
            self._name(p, number)
            for number, group in enumerate(self._groups[first:], first)
            for p in group["params"]
        )
        return first

    @property
    def _width(self) -> int:
        """Count of a step's numbers."""
        return sum(NUMBERS if kind == "group" else 1 for kind, _ in self._places)

    def check_options(self) -> None:
        """Raises: UsageError for an option of a group that is not supported"""
        for number, group in enumerate(self._groups):
            self._rule.check(group, f"{self._line}: param_groups[{number}]")

    def require_plain_closure(self) -> None:
        """Raises: UsageError for a script's own class that uses a closure in its own way"""
        if isinstance(self._rule, CustomClassRule) and not self._takes_closure:
            require_plain_closure(self.optimizer)
            self._takes_closure = True

    def _find_rule(self) -> OptimizerRule:
        rule = rule_of(self.optimizer)
        assert rule is not None, "others are recorded with the step"
        return rule

    def algorithms(self) -> dict[str, Algorithm]:
        """Return each parameter's algorithm by name.

        Raises: UsageError for a parameter outside the model, or an option out of range
        """
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

    def earlier_updates(self, trained: frozenset[str]) -> dict[str, StepNumberAttr]:
        """Return the number with each parameter's count of earlier updates, by name.

        Absent are parameters that each step has updated, and those whose updates count no steps.
        """
        form = self.form(trained)
        return {name: StepNumberAttr.of(place) for name, _, place in form if place is not None}

    def form(self, trained: frozenset[str]) -> Form:
        """Return the form of a step's updates; a program with another one must be recompiled."""
        known = self._forms.get(trained)
        if known is None or known[0] != self._updates.changes:
            found = self._form(trained)
            known = self._forms[trained] = (self._updates.changes, found)
        return known[1]

    def _form(self, trained: frozenset[str]) -> Form:
        self._updates.split(trained)
        found = []
        for name, (number, group) in self.groups().items():
            if name in trained:
                count = self._updates.lagging(name) if self._rule.counts_steps(group) else None
                if count is not None:
                    self._places.setdefault(("count", count), self._width)
                place = None if count is None else self._places["count", count]
                found.append((name, number, place))
        return tuple(found)

    def adds_numbers(self, trained: frozenset[str]) -> bool:
        """True if `numbers` gets new ones, which queued steps lack: none may be queued then."""
        return self._updates.will_split(trained)

    def count(self, trained: frozenset[str], before_change: Callable[[], None]) -> None:
        """Count a step that updates the parameters with these gradients.

        before_change: called if this changes the compiled form of later updates; it must empty the
            queue.
        """
        self._updates.count(trained, before_change)

    def _numbers_of(self, number: int, group: Mapping[str, Any]) -> GroupNumbers:
        place = self.place_of(number)
        rate, decay, cycled = (StepNumberAttr.of(place + k) for k in range(NUMBERS))
        is_cycled = self._rule.cycled_momentum(group) is not None
        return GroupNumbers(
            rate, decay if self._rule.decay(group) else 0.0, cycled if is_cycled else None
        )

    def place_of(self, group: int) -> int:
        """Return the place of a group's numbers among those of a step."""
        return self._places["group", group]

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

    def numbers(self, trained: frozenset[str]) -> tuple[float, ...]:
        """Return the per-step numbers when `optimizer.step()` is called.

        trained: parameters with gradients.

        Raises: UsageError if an option that is compiled into the program has changed
        """
        groups = self.optimizer.param_groups
        basis = trained, self._updates.changes, self._taken
        numbers = self._known_numbers.find(groups, basis)
        if numbers is None:
            numbers = self._find_numbers(trained)
            if len(self._places) == self._taken:  # without counts, which differ in each step
                self._known_numbers.keep(groups, basis, numbers)
            else:
                self._known_numbers.forget()
        return numbers

    def _find_numbers(self, trained: frozenset[str]) -> tuple[float, ...]:
        self._require_fixed()
        self.form(trained)  # its counts have places
        found: list[float] = []
        groups = self._groups
        for kind, number in self._places:
            if kind == "count":
                found.append(self._updates.value(number))
                continue
            found += self._numbers_in(groups[number])
        return tuple(found)

    def _numbers_in(self, group: Mapping[str, Any]) -> tuple[float, ...]:
        momentum = self._rule.cycled_momentum(group) or 0.0
        return float(group["lr"]), self._rule.decay(group), momentum

    def current_numbers(self) -> list[tuple[float, ...]]:
        """Return each group's numbers now, such as its learning rate."""
        return [*map(self._numbers_in, self._groups)]

    @cached_property
    def _fixed(self) -> list[tuple[Any, ...]]:
        """Options at the first step, when the loop's schedulers exist."""
        return self._options()

    def _require_fixed(self) -> None:
        """Raises: UsageError if an option that is compiled into the program has changed"""
        if self._fixed != self._options():
            raise self._changed_error()

    def _options(self) -> list[tuple[Any, ...]]:
        rule = self._rule
        return [
            (tuple(map(id, g["params"])), not rule.decay(g), *rule.fixed_options(g))
            for g in self._groups
        ]

    def _changed_error(self) -> UsageError:
        """Return the error about changed options that are compiled into the program."""
        before, now = ([ids for ids, *_ in each] for each in (self._fixed, self._options()))
        if before != now:
            had, have = ([*map(len, each)] for each in (before, now))
            others = "other ones" if had == have else have
            return UsageError(
                f"{user_line()}: the optimizer's param_groups had {had} parameters at the first "
                f"step and now have {others}: add parameters by add_param_group, and freeze those "
                "that are not to be trained by requires_grad_(False)"
            )
        names = ("params", "weight_decay == 0", *self._rule.fixed)
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

    def loaded(self) -> tuple[dict[str, torch.Tensor], int]:
        """Return the state that the script has loaded, by its names in the store, and its steps."""
        found: dict[str, torch.Tensor] = {}
        steps, groups = 0, self.groups()
        updates = dict.fromkeys(groups, 0)
        for name, parameter in self._parameters():
            state = unwrapped_state(self.optimizer).get(parameter, {})
            if not self._rule.has_begun(state):
                continue
            _, group = groups[name]
            slots = self._rule.slots(state, group)
            updates[name] = self._rule.updates_of(state, group)
            steps = max(steps, self._rule.steps_of(state, group))
            found.update((f"{slot}/{stored_name(name)}", x) for slot, x in slots.items())
        self._updates.begin_at(updates, steps)
        return found, steps

    def copy_back(self, state: Mapping[str, Array], steps: int, skipped: int = 0) -> None:
        """Write the state after this many steps into PyTorch's optimizer, in its own form.

        state: of the store, by the names of checkpoints. skipped: steps that loss scaling has
        skipped; programs count them for parameters that other steps have not updated.
        """
        groups = self.groups()
        for name, parameter in self._parameters():
            if (updates := steps - (self._updates.skipped_by(name) or skipped)) > 0:
                keys = {slot: f"{slot}/{stored_name(name)}" for slot in SLOTS}
                slots = {
                    slot: torch.from_numpy(np.array(state[key])).to(parameter.dtype)
                    for slot, key in keys.items()
                    if key in state
                }
                # Without slots the parameter was not trained, and keeps what the script has loaded.
                given = self._rule.state(slots, groups[name][1], updates) if slots else {}
                if given:
                    unwrapped_state(self.optimizer)[parameter].update(given)

    def _parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [
            (self._name(p, number), p)
            for number, group in enumerate(self._groups)
            for p in group["params"]
        ]
