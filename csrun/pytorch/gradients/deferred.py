"""Gradients without values, in steps that run on tokens.

Edits of gradients by the loop, such as clipping, have been part of the program since step 1. The
calls of each step are compared with those of the step before; a difference is detected at
`optimizer.step()`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter, is_
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.gradients.edits import EditResult, Edits, ParameterGradient, StepEdits
from csrun.pytorch.gradients.gradient_calls import GradientCalls
from csrun.pytorch.gradients.lazy_gradient import Gradient
from csrun.pytorch.gradients.reads import EditingLoop, GradientReads
from csrun.pytorch.gradients.values import GradientValue, StepGradients
from csrun.pytorch.record.recording import Recording
from csrun.pytorch.step.mutation_counters import ParameterSets
from csrun.pytorch.step.step_outputs import FindGradients, StepOutputs

if TYPE_CHECKING:
    from torch.nn import Parameter

_HELD_BY_LISTS = 3  # a parameter's gradient: by a tuple and a list, and that argument
_GRAD = attrgetter("grad")
#: Maps a step to a function that returns a parameter's gradient as `backward()` left it.
FirstGradients = Callable[[StepOutputs], Callable[[str], torch.Tensor]]


def edited_too_early() -> UsageError:
    """Return the error for an edit before all gradients of a step are accumulated."""
    return UsageError(
        f"{user_line()}: gradients are edited before another batch is accumulated: edit them after "
        "the last backward() before optimizer.step()"
    )


class Gradients:
    """Lazy gradients of the trained parameters.

    loop: computes with values on the host.
    optimized: parameters of the optimizer; gradients of others have no effect.
    name_of: returns the name of the model's tensor that shares a tensor's memory.
    left: parameters with a gradient of an earlier Session, which the first zero_grad() clears.
    """

    def __init__(
        self,
        loop: EditingLoop,
        model: torch.nn.Module,
        optimized: Iterable[torch.Tensor],
        name_of: Callable[[Any], str | None],
        sets: ParameterSets,
        left: frozenset[str] = frozenset(),
    ) -> None:
        self._left, self._optimized = left, set(map(id, optimized))
        self._unsummed: dict[str, Parameter] = {}
        self._calls = GradientCalls(self, loop, name_of)
        self._parameters = dict(model.named_parameters())
        self._names: Mapping[str, Any] = {}
        self._made: dict[str, tuple[Parameter, Gradient]] = {}
        self._all: list[tuple[Parameter, Gradient]] = []
        self._owners: list[Parameter] = []  # each of these in two lists
        self._theirs: list[Gradient] = []
        self._sets, self._seen = sets, -1
        self.is_cleared = True
        self.zeroed: set[str] = set()
        self.zeros: frozenset[str] = frozenset()  # parameters whose gradient exists and is zero
        self.batches = 0  # whose gradients are accumulated and wait for optimizer.step()
        self.step: StepOutputs | None = None  # whose gradients exist
        self._are_read = self._was_none = False

    @property
    def reads(self) -> GradientReads:
        """Access to their values."""
        return self._calls.reads

    def appear(self, names: Mapping[str, Any], step: StepOutputs | None = None) -> None:
        """Create lazy gradients for these parameters, after a recorded step.

        step: step whose gradients have values; None if later batches are accumulated.
        """
        self._renew()
        self._of(names)
        for parameter, gradient in self._all:
            parameter.grad = gradient
        self.is_cleared = self._was_none = False
        self.zeroed.clear()
        self.step = step

    def _of(self, names: Mapping[str, Any]) -> None:
        self.discard_lazy()
        for name in names:
            if name not in self._made:
                parameter = self._parameters[name]
                self._made[name] = (
                    parameter,
                    Gradient(parameter, self._calls, ParameterGradient(name)),
                )
        self._names, self._all = names, [self._made[name] for name in names]
        self._seen = -1
        self._owners, self._theirs = [p for p, _ in self._all], [g for _, g in self._all]

    def _renew(self, *, are_in_place: bool = False, are_none: Sequence[bool] = ()) -> None:
        """Update gradients of an earlier step that the loop still holds.

        In PyTorch they are the same tensors if that step's gradients were not set to None.

        are_in_place: each parameter has its lazy gradient. are_none: gradients that the loop itself
        has set to None, if it has.
        """
        if not (self._was_none or any(are_none)):
            return
        counts, step = list(map(getrefcount, self._theirs)), self.step
        if max(counts, default=0) <= _HELD_BY_LISTS + are_in_place:
            return
        for number, count in enumerate(counts):
            parameter, gradient = self._all[number]
            of, is_own = gradient.of, parameter.grad is gradient
            was_none = self._was_none or are_none[number]
            if of is None or not was_none or count <= _HELD_BY_LISTS + is_own:
                continue
            if step is not None and step.gradients is not None:
                gradient.value = GradientValue(step, partial(step.gradients.of_parameter, of.name))
            gradient.of = None
            new = Gradient(parameter, self._calls, of)
            self._made[of.name] = self._all[number] = (parameter, new)
            self._theirs[number], self._seen = new, -1
            if is_own:
                parameter.grad = new

    def begin(
        self,
        names: Mapping[str, Any],
        step: StepOutputs,
        find: FindGradients | None,
    ) -> None:
        """Create lazy gradients for these parameters, at `backward()`.

        find: as `finder` returns it; None if gradients are accumulated over batches.
        """
        if self._are_in_place():
            if self._was_none:
                self._renew(are_in_place=True)
        else:
            self._renew(are_none=[p.grad is None for p in self._owners])
        if names is not self._names:
            self._of(names)
        if not self._are_in_place():
            for parameter, gradient in self._all:
                parameter.grad = gradient
        self.is_cleared = self._was_none = False
        self.zeroed.clear()
        self._calls.begin(step)
        self.step = step
        if find is not None:
            step.set_gradients(find)

    def finder(self, first: FirstGradients) -> FindGradients:
        """Return a function that returns the gradients of a step, when the loop reads one."""
        return partial(self._find_gradients, first)

    def _find_gradients(self, first: FirstGradients, step: StepOutputs) -> StepGradients:
        reads, calls = self._calls.reads, self._calls
        return StepGradients(
            ref(step), first(step), lambda: calls.edits.made, reads.norm_in, reads.number_in
        )

    def _are_in_place(self) -> bool:
        """True if each parameter has its lazy gradient."""
        sets = self._sets
        if sets.count == self._seen and sets.sees_all:
            return True
        now = sets.count
        found = all(map(is_, map(_GRAD, self._owners), self._theirs))
        self._seen = now if found else -1
        return found

    def added_to(self) -> int:
        """Return how many batches' gradients a `backward()` would add to.

        Raises: UsageError for gradients from before `optimizer.step()`, or if only some are cleared
        """
        if self._unsummed:
            there = self._unsummed.items()
            self._unsummed = {name: p for name, p in there if p.grad is not None}
        if self.is_cleared:
            return 0
        owned = zip(self._names, self._owners, strict=True)
        optimized = [(name, p) for name, p in owned if id(p) in self._optimized]
        kept = [name for name, p in optimized if p.grad is not None and name not in self.zeroed]
        if kept and not self.batches:
            raise UsageError(
                f"{user_line()}: {kept[0]} still has the gradient of the last step: call "
                "optimizer.zero_grad() after optimizer.step(), or before each backward()"
            )
        if kept and len(kept) < len(optimized):
            raise UsageError(
                f"{user_line()}: {kept[0]} has a gradient already, and others were cleared: clear "
                "all of them by optimizer.zero_grad(), or none of them"
            )
        return self.batches if kept else 0

    def note_added(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note that the optimizer gets these parameters, which may have gradients of earlier
        steps.
        """
        added = set(map(id, parameters))
        self._unsummed |= {
            name: p for name, p in self._parameters.items() if id(p) in added and p.grad is not None
        }

    def add_optimized(self, parameters: Iterable[torch.Tensor]) -> None:
        """Take the gradients of these parameters for updates.

        Raises: UsageError for gradients of earlier steps, which were not summed
        """
        if self._unsummed:
            raise UsageError(
                f"{user_line()}: {min(self._unsummed)} had gradients before add_param_group, which "
                "zero_grad() of the optimizer had not cleared, and csrun does not sum them: call "
                "optimizer.zero_grad() between add_param_group and backward()"
            )
        self._optimized.update(map(id, parameters))

    @property
    def waiting(self) -> int:
        """Return the number of batches whose gradients wait for optimizer.step(), if they still
        exist.
        """
        owned = zip(self._names, self._owners, strict=True)
        are_there = any(p.grad is not None and name not in self.zeroed for name, p in owned)
        return self.batches if are_there and not self.is_cleared else 0

    def require_same(self, names: Mapping[str, Any]) -> None:
        """Raises: UsageError if a batch gives gradients to other parameters than the previous
        batches
        """
        if odd := sorted(set(names) ^ set(self._names)):
            raise UsageError(
                f"{user_line()}: {', '.join(odd)} got a gradient in some batches of the step and "
                "not in others: all batches of a step must train the same parameters"
            )

    def note_read(self) -> None:
        """Note that the loop reads gradients, and may branch on whether they exist."""
        self._are_read = True

    def clear(self, set_to_none: bool) -> bool:
        """Clear the gradients, as `optimizer.zero_grad()` does.

        Returns whether there are lazy ones; those from before the first step are PyTorch's own.
        """
        self._keep_zeros(set_to_none)
        self._unsummed.clear()
        self.is_cleared, self.batches = True, 0
        self._was_none |= set_to_none
        if set_to_none and (self._are_read or not self._are_in_place()):
            for parameter in self._owners:  # the loop may check whether there is one
                parameter.grad = None
        return bool(self._all)

    def _keep_zeros(self, set_to_none: bool) -> None:
        """Remember which gradients are zeros instead of None."""
        left, self._left = self._left, frozenset()
        if set_to_none:
            self.zeros = frozenset()
        elif left:
            self.zeros = left
        elif not self.zeros.issuperset(self._names):
            self.zeros = self.with_gradient

    @property
    def with_gradient(self) -> frozenset[str]:
        """Parameters whose gradient exists or is zero."""
        there = (n for n in self._names if self._parameters[n].grad is not None)
        return self.zeros.union(self._left, there)

    def require_same_zeros(self, recording: Recording) -> None:
        """Raises: UsageError if other parameters have zero gradients than in the variant's first
        step
        """
        if not (self.zeros or recording.zeros):
            return
        odd = (self.zeros - recording.first_gradients.keys()) | (recording.zeros - self.zeros)
        if odd:
            raise UsageError(
                f"{user_line()}: the gradient of {min(odd)}, to which backward() adds nothing, is "
                "zeros in some steps and None in others: pass the same set_to_none to each "
                "zero_grad() of the loop"
            )

    def discard_lazy(self) -> None:
        """Remove the lazy gradients."""
        self._was_none |= all(parameter.grad is None for parameter in self._owners)
        self.is_cleared, self._calls.is_open = True, False
        for parameter, _ in self._made.values():
            if isinstance(parameter.grad, Gradient):
                parameter.grad = None

    def end_block(self) -> None:
        """Remove the lazy gradients and the data for their values."""
        self.discard_lazy()
        self.step, self._calls.edits = None, Edits()

    def end(self) -> StepEdits:
        """Return the edits of the step, at `optimizer.step()`.

        Raises: UsageError for a gradient that was not computed from this step's gradients
        """
        self._calls.is_open, self.batches = False, 0
        assigned = {} if self._are_in_place() else self._assigned()
        kept, step = self._calls.edits.end(assigned), self.step
        if step is not None:
            step.edits = kept.all
        return kept

    def so_far(self) -> StepEdits:
        """Return the edits of the step, as if the loop completed those of the previous step."""
        return self._calls.edits.so_far(self._assigned())

    @property
    def may_be_edited_otherwise(self) -> bool:
        """True if the step has edits that the previous step does not have, or if those are
        unknown.
        """
        return self._calls.edits.may_be_others

    def end_recorded(self) -> StepEdits:
        """Return the edits that the loop has made after the recorded ones."""
        found = self.end()
        self._calls.edits.forget()
        return found

    def up_to_last_write(self) -> StepEdits:
        """Return `so_far` without trailing edits that only read gradients."""
        return self._calls.edits.up_to_last_write(self._assigned())

    def leave(self, batches: int) -> None:
        """Keep the gradients of `batches` batches: the next batch is accumulated into them.

        Raises: UsageError if they were edited
        """
        self._calls.is_open = False
        assigned = self._assigned()
        is_cleared = len(assigned) == len(self._all) and not any(assigned.values())
        if self._calls.edits.are_written or (assigned and not is_cleared):
            raise edited_too_early()
        if self.step is not None:
            self.step.edits = self._calls.edits.made
        self.batches = 0 if is_cleared else batches

    def _assigned(self) -> dict[str, EditResult | None]:
        found: dict[str, EditResult | None] = {}
        if self._are_in_place():
            return found
        for name, (parameter, gradient) in zip(self._names, self._all, strict=True):
            now = parameter.grad
            if now is gradient:
                continue
            found[name] = None if now is None else self._calls.edits.place_of(now)
            if now is not None and found[name] is None:
                raise UsageError(
                    f"{user_line()}: the gradient of {name} must come from this step's "
                    "backward(), got another tensor: compute it from parameter.grad"
                )
        return found
