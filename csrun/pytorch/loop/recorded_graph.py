"""Graph of a finished recorded step: the variant that it defines, or that it equals."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from csrun.base.mode import RunMode
from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.recorded_checks import (
    ForwardCalls,
    are_numbered_alike,
    is_of_forward,
    refs_in,
    require_evaluation,
)
from csrun.pytorch.loop.recorded_gradients import gradients_behind
from csrun.pytorch.record.compare import (
    ChangedValues,
    changed_values,
    counterparts,
    difference,
    has_other_shapes,
)
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import GraphLeaf, LeafSource, Recording, Ref, ancestors
from csrun.pytorch.record.rows.operands import NotByRow
from csrun.pytorch.record.rows.padded import (
    has_rows_of_mask,
    pad_rows,
    padded_rows_of,
    valid_rows_in,
)
from csrun.pytorch.step.loop_calls import BACKWARD, MODEL, UPDATE
from csrun.pytorch.step.loop_shape import LoopShape
from csrun.pytorch.step.snapshots import Constant
from csrun.pytorch.step.step_outputs import Slot
from csrun.pytorch.step.variant import Batches, StepVariant


class RecordedGraph:
    """Graph of a finished step, compared with the variants of its part of the loop.

    recording: including everything that the step's program takes.
    unpadded: the same before rows that a mask selects were padded, if they are.
    batch: its values, as the loader made it.
    returned: values that a new variant returns, besides those that the loop reads.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        recording: Recording,
        batch: Any,
        forward: ForwardCalls,
        returned: tuple[Ref, ...],
    ) -> None:
        self._recorder, self.recording = recorder, recording
        self._batch, self._forward, self._returned = batch, forward, returned
        self.unpadded: Recording | None = None
        self._counterparts: dict[Ref, GraphLeaf] | None = None  # by values of the variant
        self._keep_host_leaves()

    def _keep_host_leaves(self) -> None:
        """Make the host's results inputs of the program, as far as the loop's values need them."""
        recording, host = self.recording, self._recorder.host
        if not host.results:
            return
        wanted = [*self._goals(), *refs_in(self._forward.results)]
        if recording.loss is None:
            wanted += [read.value for read in recording.reads]
        needed = ancestors(recording, wanted, host.results)
        host.leaves = host.leaves_among(needed)
        self.recording = replace(recording, host_leaves=host.leaves)

    @property
    def host_line(self) -> str:
        """Line of a result whose shape depends on the batch; empty if there is none."""
        recording = self.recording
        values = recording.shaped.union(leaf.value for leaf in recording.host_leaves)
        made = (op for op in recording.operators if op.is_of_host)
        return next((op.line for op in made if values.intersection(op.results)), "")

    def read_model(self, first: Sequence[str]) -> None:
        """Make all weights of the model leaves of a training, as in other steps' graphs.

        first: their names in the order of the first training's program.
        """
        if self.recording.loss is not None and self.unpadded is None:
            self._recorder.read_model(first)
            kinds, leaves = self._recorder.kinds, self._recorder.leaves
            self.recording = replace(self.recording, kinds=tuple(kinds), leaves=tuple(leaves))

    @property
    def computed(self) -> Recording:
        """Recording of the step's own values, without padding."""
        return self.unpadded or self.recording

    def pad_rows(self, alike: Iterable[StepVariant], are_edits_apart: bool) -> None:
        """Pad the rows that a mask of the batch selects, if another step has other numbers of rows
        and otherwise computes the same.

        alike: variants of the step's part of the loop.
        are_edits_apart: as in `difference`.
        """
        if self._recorder.host.are_rows_counted or not has_rows_of_mask(self.recording):
            return
        known = [each for each in alike if has_rows_of_mask(each.unpadded or each.recording)]
        others = [each for each in known if each.unpadded or self.has_other_shapes(each)]
        if not others or any(each.unpadded is None for each in known if each not in others):
            return
        with suppress(NotByRow):
            padded = pad_rows(self.recording, [*self._goals(), *self._returned])
            for variant in others:
                first = variant.unpadded or variant.recording
                again = pad_rows(first, (), padded_rows_of(padded))
                goals, own = variant.goals, self._goals()
                if are_edits_apart and variant.trains:
                    goals, own = again.before_edits, padded.before_edits
                if difference(again, goals, padded, own) is None:
                    self.recording, self.unpadded = padded, self.recording
                    return

    @property
    def rows(self) -> int | None:
        """Number of rows that its mask selects, if they are padded."""
        if self.unpadded is None:
            return None
        valid = valid_rows_in(self.recording)
        leaves = self.recording.host_leaves
        return int(next(leaf.tensor for leaf in leaves if leaf.value == valid).sum())

    def inputs_of(self, variant: StepVariant) -> tuple[torch.Tensor, ...] | None:
        """Return the inputs that a variant's program takes from this step; None if a loader gives
        all of them.
        """
        if not variant.batches.is_pushed:
            return None
        own = self._counterparts
        if own is None:
            taken = self.recording.with_script_numbers(variant.recording.script_numbers)
            own = {leaf.value: leaf for leaf in (*taken.leaves, *taken.host_leaves)}
        given = (own.get(leaf.value, leaf) for leaf in variant.recording.program_inputs)
        return tuple(leaf.tensor.detach() for leaf in given)

    def changed_values(self, variant: StepVariant) -> ChangedValues | None:
        """Return the script's values that differ from a variant's, if nothing else differs.

        None if more differs.
        """
        if variant.trains != (self.recording.loss is not None):
            return None
        first, own = variant.recording, self.recording
        return changed_values(first, variant.goals, own, self._goals())

    def are_of_updates(self, changed: ChangedValues) -> bool:
        """True for numbers that the optimizers compute in each step."""
        updates = [call.operators for call in self._forward.calls if call.operators]
        return not changed.constants and all(
            any(each.start <= place.operator < each.stop for each in updates)
            for place in changed.numbers
        )

    @property
    def are_written_by_updates(self) -> bool:
        """True if forward and the optimizers make all next values of weights and buffers."""
        made_by = {r: n for n, op in enumerate(self.recording.operators) for r in op.results}
        updates = [call.operators for call in self._forward.calls if call.operators]
        return all(
            any(each.start <= made_by.get(value, -1) < each.stop for each in slices)
            for slices in [[*self._forward.operators, *updates]]
            for value in self.recording.written.values()
        )

    def line_of(self, changed: ChangedValues) -> str:
        """Return the user's line of one of the changed values."""
        return changed.first_line(self.recording)

    def take_with_step(self, changed: ChangedValues, like: StepVariant) -> None:
        """Make values inputs of the step's program, besides those that a variant's program
        takes.
        """
        first = like.recording
        own = self.recording.with_script_numbers(first.script_numbers)
        own = own.with_script_tensors({leaf.value for leaf in first.of(LeafSource.SCRIPT)})
        self.recording = changed.taken_from(own)

    def variant(
        self, batches: Batches, mode: RunMode, inputs: Mapping[Ref, Slot] | None = None
    ) -> StepVariant:
        """Return a new variant. inputs: slots of the batch, if another variant has the same kind of
        batches.
        """
        recording = self.recording
        if mode is RunMode.EVAL:
            require_evaluation(recording)
        if recording.script_leaves or batches.is_pushed:
            batches = Batches(batches.loader, batches.number, is_pushed=True)
        variant = StepVariant(recording, self._shape(inputs), batches, mode, self._goals())
        if recording.loss is not None and self._forward.keeps(recording, recording.loss):
            variant.kept_line = recording.loss_line
        variant.outputs, variant.unpadded = self._read_of(variant), self.unpadded
        variant.constants = self._constants(variant.shape)
        return variant

    def _shape(self, inputs: Mapping[Ref, Slot] | None) -> LoopShape:
        return LoopShape(self.recording, self._batch, self._forward.calls, inputs)

    def _constants(self, shape: LoopShape) -> list[Constant]:
        """Return the constants whose numbers no call of the loop compares."""
        plain, counters = self._recorder.plain, self.recording.counters
        made = (
            Constant(tensor, leaf.tensor, leaf.name, leaf.value in plain.buffers)
            for tensor, leaf in plain.constants()
            if leaf.name not in counters
        )
        return [each for each in made if not shape.compares(each.tensor)]

    def _read_of(self, variant: StepVariant) -> tuple[Ref, ...]:
        """Return the values that the loop reads, or that calls outside of the loss's computation
        return.
        """
        recording = self.recording
        calls = [call for call in self._forward.calls if call.name not in (BACKWARD, UPDATE)]
        read = [r.value for r in recording.reads if is_of_forward(recording, r.value)]
        if recording.loss is None:
            results = [c.results for c in calls if c.name != MODEL or not read]
        else:
            loss = ancestors(recording, [recording.loss])
            results = [c.results for c in calls if loss.isdisjoint(refs_in(c.results))]
        read += [ref for ref in refs_in(results) if is_of_forward(recording, ref)]
        if len(calls) < len(self._forward.calls):  # losses, which no single value stands for
            made = refs_in([call.results for call in calls])
            read += [ref for ref in made if recording.kind(ref).shape == ()]
        found = dict.fromkeys(variant.shape.bases_of(recording, read))
        found.update(dict.fromkeys(variant.evaluated_buffers.values()))
        for each in recording.reads:
            if not is_of_forward(recording, each.value):
                found.update(dict.fromkeys(gradients_behind(recording, each.value, variant)))
        return tuple(dict.fromkeys((*found, *self._returned)))

    def _goals(self) -> list[Ref]:
        """Return the values that the step is computed for."""
        recording = self.recording
        if recording.loss is not None:
            return [recording.loss, *recording.gradients.values(), *recording.written.values()]
        return [*refs_in(self._forward.results), *recording.written.values()]

    def join(self, variant: StepVariant, are_edits_apart: bool) -> None:
        """Make an equal variant return the values that the loop reads from this step.

        are_edits_apart: as in `difference`.
        """
        if not self.is_same(variant):
            goals, own = self._compared(variant, are_edits_apart)
            self._counterparts = counterparts(variant.recording, goals, self.recording, own)
        read = (
            self.recording.loss,
            self.recording.reads,
            *(call.made for call in self._forward.calls),
        )
        is_repeated = self.recording.has_operators_of(variant.recording)
        if not is_repeated or variant.joined != read:
            variant.wanted.update(dict.fromkeys(self._read_of(variant)))
            variant.joined = read if is_repeated else ()

    def difference(self, variant: StepVariant, are_edits_apart: bool) -> str:
        """Return the difference from the first step of a variant, with its line; else empty text.

        are_edits_apart: edits of gradients are not compared.
        """
        trains = self.recording.loss is not None
        if variant.trains != trains:
            return f"{user_line()}: backward() is called in some steps and not in others"
        goals, own = self._compared(variant, are_edits_apart)
        if found := difference(variant.recording, goals, self.recording, own):
            return found
        before, now = variant.recording.host_leaves, self.recording.host_leaves
        if [leaf.tensor.shape for leaf in before] != [leaf.tensor.shape for leaf in now]:
            return f"{self.host_line}: the shape of a result differs from step 1"
        return ""

    def _compared(
        self, variant: StepVariant, are_edits_apart: bool
    ) -> tuple[Sequence[Ref], Sequence[Ref]]:
        """Return the values of a variant and of the step that are compared."""
        if are_edits_apart and variant.trains:
            return variant.recording.before_edits, self.recording.before_edits
        return variant.goals, self._goals()

    @property
    def has_read_gradients(self) -> bool:
        """True if the loop has read values of gradients before the end of the step."""
        return not all(is_of_forward(self.recording, r.value) for r in self.recording.reads)

    @property
    def has_same_numbering(self) -> bool:
        """True if equal numbers name equal values here and in the step's variant."""
        return self._counterparts is None

    def has_other_shapes(self, variant: StepVariant) -> bool:
        """True if the batch gives a result another shape than in a variant, or if one of both has
        padded rows.
        """
        if (variant.unpadded is None) != (self.unpadded is None):
            return True
        return has_other_shapes(variant.unpadded or variant.recording, self.computed)

    def has_shapes_of(self, variant: StepVariant) -> bool:
        """True if what a program takes with each step has the shapes of a variant's."""
        first, own = variant.recording, self.recording
        both = ([leaf.tensor.shape for leaf in each.program_inputs] for each in (first, own))
        return next(both) == next(both)

    def has_other_inputs(self, variant: StepVariant) -> bool:
        """True if the batch has other shapes than a variant's."""
        first, own = variant.recording, self.recording
        both = ([each.kind(x.value) for x in each.of(LeafSource.INPUT)] for each in (first, own))
        return next(both) != next(both)

    def is_same(self, variant: StepVariant) -> bool:
        """True if the step is recorded exactly as the first one of a variant."""
        return self.changed_values(variant) == ChangedValues()

    def takes_over(self, variant: StepVariant, inputs: Mapping[Ref, Slot] | None) -> bool:
        """Take over a variant of an earlier Session, if the step computes the same."""
        recording = self.recording
        if self.difference(variant, are_edits_apart=False):
            return False
        if not are_numbered_alike(variant.recording, recording):
            return False
        script_tensors = {leaf.value for leaf in variant.recording.of(LeafSource.SCRIPT)}
        self.recording = recording = recording.with_script_tensors(script_tensors)
        variant.recording, variant.goals, variant.shape = (
            recording,
            self._goals(),
            self._shape(inputs),
        )
        variant.unpadded = self.unpadded
        variant.constants = self._constants(variant.shape)
        variant.wanted.update(dict.fromkeys(self._read_of(variant)))
        return True
