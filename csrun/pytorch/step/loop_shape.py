"""Calls that a step of a variant is expected to make, and its values for the loop."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from csrun.pytorch.record.recording import LeafSource, Recording, Ref, ancestors
from csrun.pytorch.step.expected_calls import Expected
from csrun.pytorch.step.host_values import HostValues
from csrun.pytorch.step.loop_calls import BACKWARD, MODEL, UPDATE, Call
from csrun.pytorch.step.snapshots import Snapshot
from csrun.pytorch.step.step_outputs import Owner, Slot, StepOutputs
from csrun.pytorch.step.tokens import token_of

#: Functions that may return one of their arguments, which tokens cannot know.
_GIVE_THEIR_OWN = frozenset({"broadcast_tensors", "getitem", "real"})


class LoopShape:
    """Expected calls of a step, and its values for the loop.

    The calls are those that lead to the loss, or to an argument of the model, even if unused; in an
    evaluation, to the first value that is read, or to a write to a value. In a step with its own
    updates they include `backward()` and `optimizer.step()`, and all that lead to a new weight.

    batch: as the loader made it, with a Slot for each tensor.
    inputs: those Slots, shared by all variants with such batches of a loader.
    loss: None in an evaluation.
    host: results that the host computes in each step.
    """

    def __init__(
        self,
        recording: Recording,
        batch: Any,
        calls: Iterable[Call],
        inputs: Mapping[Ref, Slot] | None = None,
    ) -> None:
        self._recording = recording
        self._slots: dict[Ref, Slot] = dict(inputs or {})
        calls = list(calls)
        self._has_updates = any(call.name == UPDATE for call in calls)
        wanted = ancestors(recording, self._goals(calls))
        self._is_batch_known = False
        self._arguments = {
            leaf.value: Slot(leaf.value, leaf.tensor.to("meta"), is_argument=True)
            for leaf in recording.of(LeafSource.SCRIPT)
        }
        self._differentiable = {value for call in calls for value in call.differentiable}
        self._strides = dict(strides for call in calls for strides in call.strides)
        self.batch = self._with_slots(batch)
        self.inputs: Mapping[Ref, Slot] = dict(self._slots)
        self._is_batch_known = True
        self.calls: list[Expected] = []
        for call in calls:
            results = [r for r in tree_leaves(call.results) if isinstance(r, Ref)]
            is_change = self._has_updates and (call.name in (BACKWARD, UPDATE) or call.writes)
            is_needed = call.name == MODEL or any(r in wanted for r in results)
            is_new = call.name in _GIVE_THEIR_OWN or not self._is_known(results)
            if is_change or (is_needed and is_new):
                self.calls.append(self._expected(call))
        self.loss = self._slots.get(recording.loss) if recording.loss else None
        self.host = HostValues(recording)
        flat, self._spec = tree_flatten(self.batch)
        self._flat, self._is_list = flat, type(self.batch) is list and len(flat) == len(self.batch)
        self._has_others = len(self.arrays) != len(flat)  # than tensors

    def _goals(self, calls: Sequence[Call]) -> list[Ref]:
        """Return the values that each step computes by the same calls."""
        recording = self._recording
        found = [x for call in calls if call.name == MODEL for x in call.operands]
        if recording.loss is not None:
            found.append(recording.loss)
        else:
            found += [read.value for read in recording.reads[:1]]
            found += [x for call in calls if call.writes for x in tree_leaves(call.results)]
        if self._has_updates:
            found += recording.written.values()
        return [x for x in found if isinstance(x, Ref)]

    @cached_property
    def modes(self) -> tuple[bool, ...] | None:
        """Modes of the modules at the model's first call."""
        return next((call.how[1] for call in self.calls if call.name == MODEL), None)

    @cached_property
    def takes_weights(self) -> bool:
        """True if the loop itself uses weights to compute its loss."""
        return any(
            isinstance(operand, torch.nn.Parameter) or (type(operand) is Snapshot and operand.name)
            for call in self.calls
            for operand in call.operands
        )

    @property
    def values(self) -> Iterable[Ref]:
        """All values of a step for the loop."""
        return self._slots

    def slot_of(self, value: Ref) -> Slot | None:
        """Return the slot of a value, None if steps do not have it for the loop."""
        return self._slots.get(value)

    @property
    def arrays(self) -> list[Slot]:
        """Slots of the batch's tensors, in order."""
        return [leaf for leaf in self._flat if isinstance(leaf, Slot)]

    def _is_known(self, results: list[Ref]) -> bool:
        return all(r in self._slots for r in results)

    def _expected(self, call: Call) -> Expected:
        operands = tuple(self._operand(o) if isinstance(o, Ref) else o for o in call.operands)
        results = self._with_slots(call.results)
        is_one = isinstance(results, Slot)
        gradients = call.gradients if self._recording.loss else None
        return Expected(
            call.name, operands, results, call.how, is_one, call.spec, gradients, call.draws,
            call.scope, call.operators,
        )  # fmt: skip

    def _operand(self, value: Ref) -> Any:
        return self._slots.get(value) or self._arguments.get(value, value)

    def compares(self, tensor: torch.Tensor | None) -> bool:
        """True if a call compares a tensor's numbers in each step."""
        operands = (operand for call in self.calls for operand in call.operands)
        return any(type(o) is Snapshot and o.watches(tensor) for o in operands)

    @property
    def known(self) -> set[Ref]:
        """Tensors that a step knows without forward: passed to a call, drawn, or from the batch."""
        operands = (operand for call in self.calls for operand in call.operands)
        given = {o.value for o in operands if type(o) is Slot and o.is_argument}
        known = given.union(d.value for call in self.calls for d in call.draws if d.value)
        known |= self.update_numbers
        return known.union(self.host.needed) if self.host.given <= known else known

    @property
    def update_numbers(self) -> set[Ref]:
        """Numbers that optimizers compute in each step, such as a learning rate."""
        recording, updates = self._recording, [c.operators for c in self.calls if c.operators]
        return {
            recording.operators[place.operator].arguments[place.argument]
            for place in recording.script_numbers
            if any(each.start <= place.operator < each.stop for each in updates)
        }

    @property
    def unknown_operands(self) -> bool:
        """True if a call takes a value that no earlier call returns, or a weight by itself."""
        operands = [operand for call in self.calls for operand in call.operands]
        return any(
            isinstance(x, Ref | torch.nn.Parameter) or (type(x) is Snapshot and x.name is not None)
            for x in operands
        )

    def _with_slots(self, tree: Any) -> Any:
        return tree_map(lambda x: self._slot(x) if isinstance(x, Ref) else x, tree)

    def _slot(self, value: Ref) -> Slot:
        if value not in self._slots:
            kind = self._recording.kind(value)
            meta = torch.empty(kind.shape, dtype=kind.dtype, device="meta")
            if (strides := self._strides.get(value)) is not None:
                meta = torch.empty_strided(kind.shape, strides, dtype=kind.dtype, device="meta")
            if value in self._differentiable and kind.dtype.is_floating_point:
                meta.requires_grad_()
            is_input, is_loss = not self._is_batch_known, value == self._recording.loss
            weight = self._recording.viewed_parameter(value)
            rows_axis = self._recording.row_axes.get(value)
            self._slots[value] = Slot(value, meta, is_loss, is_input, weight, rows_axis=rows_axis)
        return self._slots[value]

    def bases_of(self, recording: Recording, values: Iterable[Ref]) -> tuple[Ref, ...]:
        """Return the values of a step from which the loop computes these, except the loss."""
        wanted = [value for value in values if value != recording.loss]
        made_of = ancestors(recording, wanted, self._slots)
        return tuple(ref for ref in self._slots if ref in made_of and ref != recording.loss)

    def tokens_of_batch(self, owner: Owner, step: StepOutputs) -> Any:
        """Return the batch of a step, as tokens; of other objects than tensors, its own."""
        if self._has_others:
            assert step.batch is not None, "it begins with one"
            slots = iter(self.arrays)
            return tree_map(
                lambda x: token_of(owner, step, next(slots)) if isinstance(x, torch.Tensor) else x,
                step.batch(),
            )
        made = [token_of(owner, step, x) if type(x) is Slot else x for x in self._flat]
        return made if self._is_list else self._spec.unflatten(made)
