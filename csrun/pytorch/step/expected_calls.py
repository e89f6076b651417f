"""Calls that step 1 made between its batch and `optimizer.step()`, which later steps repeat.

Forward's Python does not run in later steps. A call that step 1 made at the same position, on the
same values, returns the recorded results; all other computations of the loop are lazy.
"""

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_map

from csrun.pytorch.record.draws import Draw
from csrun.pytorch.step.snapshots import Snapshot
from csrun.pytorch.step.step_outputs import Owner, Slot, StepOutputs
from csrun.pytorch.step.tokens import Token, token_of

_REQUIRES_GRAD = attrgetter("requires_grad")


@dataclass(frozen=True, eq=False)
class Expected:
    """A call that each step makes. operands: a Slot for each value of the step.

    gradients: `gradients_of` its arguments; None in an evaluation.
    draws, scope, operators: as in `Call`.
    """

    name: str
    operands: tuple[Any, ...]
    results: Any
    how: tuple[Any, ...]
    is_one: bool = False
    spec: TreeSpec | None = None
    gradients: tuple[bool, ...] | None = None
    draws: tuple[Draw, ...] = ()
    scope: str | None = None
    operators: slice | None = None

    @cached_property
    def takes_script_tensors(self) -> bool:
        """True if it gets tensors of the script that differ from step to step."""
        return any(type(each) is Slot and each.is_argument for each in self.operands)

    def is_called(
        self, name: str, given: list[Any], how: tuple[Any, ...], step: StepOutputs
    ) -> bool:
        """True if a call in a step is this one."""
        if name != self.name or len(given) != len(self.operands) or how != self.how:
            return False
        for operand, argument in zip(self.operands, given, strict=True):
            if operand is argument:
                continue
            if type(argument) is Token:
                if argument.slot is not operand or argument.step is not step:
                    return False
            elif not _is_equal(operand, argument):
                return False
        return self.gradients is None or self._gradients_of(given) == self.gradients

    def _gradients_of(self, given: list[Any]) -> tuple[bool, ...]:
        """Return `gradients_of` arguments that match its operands."""
        values = [given[number] for number in self._value_places]
        with torch._C.DisableTorchFunctionSubclass():  # calls of LazyTensor take much longer
            return (torch.is_grad_enabled(), *map(_REQUIRES_GRAD, values))

    @cached_property
    def _value_places(self) -> list[int]:
        """Indices of the operands that are values of the step."""
        slots = ((n, x) for n, x in enumerate(self.operands) if type(x) is Slot)
        return [number for number, slot in slots if not slot.is_argument]

    def first_difference(self, given: list[Any]) -> int:
        """Return the index of the first argument that differs, in a call that does not match."""
        for index, (operand, argument) in enumerate(zip(self.operands, given, strict=True)):
            value = argument.slot if isinstance(argument, Token) else argument
            if operand is not value and not _is_equal(operand, value):
                return index
        raise AssertionError("the call differs in an argument")

    def tokens(self, owner: Owner, step: StepOutputs) -> Any:
        """Return its results in a step."""
        if self.is_one:
            return token_of(owner, step, self.results)
        return tree_map(
            lambda r: token_of(owner, step, r) if isinstance(r, Slot) else r, self.results
        )


def _is_equal(operand: Any, argument: Any) -> bool:
    if type(operand) is Slot and operand.is_argument:
        return operand.fits(argument)
    if type(operand) is Snapshot:
        return operand.is_still(argument)
    if isinstance(operand, torch.Tensor | Slot) or isinstance(argument, torch.Tensor):
        return False
    return type(operand) is type(argument) and bool(operand == argument)
