"""A step of the loop that is recorded, and the variant that it makes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from csrun.base.mode import RunMode
from csrun.data.adapters.torch_batches import on_one_thread
from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.readback import view_is_stale
from csrun.pytorch.loop.recorded_checks import (
    are_numbered_alike,
    is_of_forward,
    norm_in,
    refs_in,
    require_evaluation,
    require_samples,
)
from csrun.pytorch.loop.recorded_gradients import (
    RecordedGradients,
    parameters_of,
)
from csrun.pytorch.loop.recorded_reads import ReadBefore
from csrun.pytorch.lower.dropout_masks import MaskKey
from csrun.pytorch.lower.interpret import interpret, read_batch
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.compare import (
    ChangedValues,
    changed_values,
    counterparts,
    difference,
    has_other_shapes,
)
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import GraphLeaf, LeafSource, Recording, Ref, ancestors
from csrun.pytorch.record.repeated import KnownOperators
from csrun.pytorch.record.torch_modes import collection_paused, unrecorded
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.run.replay import GoneError
from csrun.pytorch.step.expected_calls import MODEL, Calls, gradients_of
from csrun.pytorch.step.loop_shape import LoopShape
from csrun.pytorch.step.snapshots import Constant
from csrun.pytorch.step.step_outputs import Slot
from csrun.pytorch.step.tokens import Numbers
from csrun.pytorch.step.variant import Batches, StepVariant
from csrun.pytorch.weights.sync import StepWeights


class RecordedStep:
    """A step on traced tensors, from its batch to `finish`.

    key: of the variant in the cache. batch: for the loop. is_left: the loop takes another batch
    without `optimizer.step()`; is_cleared: and has cleared its gradients. has_new_buffers: forward
    has created buffers of the model. end_early: ends the recording, as a number of the gradients is
    read.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        batch: Any,
        key: tuple[Any, ...],
        later: Callable[..., Any],
        draw: MaskKey,
        before: ReadBefore,
        require_cleared: Callable[[], Collection[str]],
        takes_arguments: bool,
        known: KnownOperators,
        follows: bool,
    ) -> None:
        self.key = key
        self.is_left = self.is_cleared = self.has_new_buffers = False
        self.modes: tuple[bool, ...] = ()  # in which the model was called
        self.state = 0  # of what forward reads, then
        self._forwards: list[slice] = []  # the operators of each call of it
        self._recorder, self._draw = StepRecorder(model), draw
        self._recorder.takes_arguments, self._recorder.repeated.known = takes_arguments, known
        self.calls = Calls(self._recorder, later)
        self._before = before
        self._counterparts: dict[Ref, GraphLeaf] | None = None  # by values of the variant
        self.end_early: Callable[[], None] = _no_end
        self.gradients = RecordedGradients(self._computed, lambda: self._draw.batch)
        self._own_weights = self._weights
        self._recorder.reader = self._number_so_far
        read_batch(self._recorder)
        self._recorder.may_read_in_forward = self._recorder.may_draw = True
        self._recorder.backward.require_cleared = require_cleared
        require_samples(batch)
        with ExitStack() as opened:
            opened.enter_context(collection_paused())
            opened.enter_context(self._recorder)
            self.batch = self._recorder.batch(batch)
            self._batch_refs = tree_map(_ref_of, self.batch)  # before the loop changes its dict
            if follows:
                opened.enter_context(self.calls.follow())
            opened.enter_context(self.calls)
            self._modes = opened.pop_all()

    def _number_so_far(self, traced: TracedTensor) -> torch.Tensor:
        """Return the numbers of a value that is read before the step is over."""
        recorder = self._recorder
        so_far = recorder.so_far()
        if not is_of_forward(so_far, traced.value):
            if norm_in(recorder.so_far(recorder.backward.gradients), traced.value):
                self.end_early()
                return recorder.reader(traced)
            return self._before.number_of(
                traced.value,
                lambda: {traced.value: self.gradients.number(so_far, traced.value)},
            )
        if not recorder.scopes.is_in_forward:
            self._require_returned(so_far, traced.value)
        return self._before.number_of(
            traced.value, lambda: interpret(so_far, [traced.value], self._weights(), self._draw)
        )

    def _computed(
        self, recording: Recording, values: Sequence[Ref], known: Mapping[Ref, torch.Tensor]
    ) -> Mapping[Ref, torch.Tensor]:
        with unrecorded(), on_one_thread():
            return interpret(recording, values, self._own_weights(), self._draw, known)

    def gradient(self, name: str) -> torch.Tensor:
        """Return a parameter's gradient after all edits, once the recording has ended."""
        returned, value = self.gradients.returned, self._recording.gradients.get(name)
        if returned is not None and value is not None:
            wanted = self._gradients_of(returned.variant, value)
            returned.variant.wanted.update(dict.fromkeys(wanted))
        return self.gradients.of_parameter(self._recording, name)

    def _gradients_of(self, variant: StepVariant, value: Ref) -> list[Ref]:
        """Return the gradients that a variant is to return for a value."""
        first = variant.recording.first_gradients
        return [first[name] for name in parameters_of(self._recording, value) if name in first]

    def _value_of(self, recording: Recording, value: Ref) -> torch.Tensor:
        with unrecorded(), on_one_thread():
            return interpret(recording, [value], self._weights(), self._draw)[value].clone()

    def _require_returned(self, recording: Recording, value: Ref) -> None:
        """Raises: GoneError for a value made of one that forward has not returned"""
        results = [call.results for call in self.calls.found if call.name == MODEL]
        known = {*refs_in(results), *recording.written.values()}
        made_of = ancestors(recording, [value], known) - known
        kept = (op for each in self._forwards for op in recording.operators[each])
        drawn = any(draw.value in made_of for draw in self._recorder.draws.made)
        if drawn or any(result in made_of for op in kept for result in op.results):
            raise GoneError(
                f"{user_line()}: the loop uses a value that forward has kept in a hook or an "
                "attribute and not returned: forward runs in the first steps only, so the value "
                "would not change; return it from forward, in a tuple, list, dict or dataclass"
            )

    def _weights(self) -> Mapping[str, torch.Tensor]:
        """Return the weights that are not in the user's own Parameters."""
        return self._before.run.weights_of_store()

    @property
    def cause(self) -> str:
        """Why other steps may have other graphs or tensors; empty if nothing says so."""
        return self._recorder.varies

    @property
    def has_loss(self) -> bool:
        """True if `backward()` was called."""
        return self._recorder.has_loss

    def traced(self, tree: Any) -> Any:
        """Return what the loop has given, with traced tensors in the place of tokens."""
        return tree if self.calls.traced is None else self.calls.traced(tree)

    def call(
        self,
        forward: Callable[..., Any],
        args: Any,
        kwargs: Any,
        modes: tuple[bool, ...],
        state: int,
    ) -> Any:
        """Call the model. modes, state: of its modules and of its guards."""
        gradients = gradients_of(leaves_of(args, kwargs))
        args, kwargs = self.calls.with_inputs((args, kwargs))
        operands = self.calls.operands(args, kwargs)
        begin, drawn = len(self._recorder.operators), len(self._recorder.draws.made)
        self.calls.depth += 1
        try:
            results = self._recorder.call_model(forward, args, kwargs)
            if self._recorder.take_new_buffers(self._value_of):
                self.has_new_buffers = True
                results = self._recorder.call_model(forward, args, kwargs)
        finally:
            self.calls.depth -= 1
        if not self.calls.depth:
            self._forwards.append(slice(begin, len(self._recorder.operators)))
            if not self.modes:
                self.modes, self.state = modes, state
            how = (tuple(kwargs), modes, None if state == self.state else state)
            spec = tree_structure((args, kwargs))
            made = tuple(self._recorder.draws.made[drawn:])
            self.calls.note(MODEL, operands, results, how, gradients, spec, draws=made)
        return results

    def backward(self, token: Numbers) -> bool:
        """Call backward() on the traced tensor of a token; False if it is not of this step."""
        with torch.enable_grad():
            traced = self.traced(token)
        if not isinstance(traced, TracedTensor):
            return False
        traced.backward()
        return True

    def draw_as(self, place: int) -> None:
        """Draw dropout masks as for batch `place` of the step."""
        self._draw = replace(self._draw, batch=place)

    def close(self) -> None:
        """Stop recording."""
        self._modes.close()

    @property
    def is_finished(self) -> bool:
        """True if the recording has ended."""
        return self._recorder.is_finished

    def finish(self, *, is_one_of_many: bool) -> None:
        """End the recording. is_one_of_many: other steps have other graphs over the same store."""
        recording = self._recorder.finish()
        self.is_cleared = self.is_left and not recording.gradients
        if self.is_cleared:  # of another batch of its shape they are not
            recording = replace(recording, gradients=recording.first_gradients)
        self._recording = recording
        self._keep_host_leaves()
        if is_one_of_many or self.host_line:
            self.read_model()

    def _keep_host_leaves(self) -> None:
        """Have the program take what the host computes, as far as the loop's values need it."""
        recording, host = self._recording, self._recorder.host
        if not host.results:
            return
        results = [call.results for call in self.calls.found if call.name == MODEL]
        wanted = [*self._goals(), *refs_in(results)]
        if recording.loss is None:
            wanted += [read.value for read in recording.reads]
        needed = ancestors(recording, wanted, host.results)
        host.leaves = host.leaves_among(needed)
        self._recording = replace(recording, host_leaves=host.leaves)

    @property
    def host_line(self) -> str:
        """Line of a result whose shape depends on the batch; empty if there is none."""
        recording = self._recording
        values = recording.shaped.union(leaf.value for leaf in recording.host_leaves)
        made = (op for op in recording.operators if op.is_of_host)
        return next((op.line for op in made if values.intersection(op.results)), "")

    def read_model(self) -> None:
        """Have all weights of the model among a training's leaves, as in other steps' graphs."""
        if self.has_loss:
            self._recorder.read_model()
            kinds, leaves = self._recorder.kinds, self._recorder.leaves
            self._recording = replace(self._recording, kinds=tuple(kinds), leaves=tuple(leaves))

    @property
    def recording(self) -> Recording:
        """The recording, after `finish`."""
        return self._recording

    def inputs_of(self, variant: StepVariant) -> tuple[torch.Tensor, ...] | None:
        """Return what a variant's program takes of this step; None if a loader gives all of it."""
        if not variant.batches.is_pushed:
            return None
        own = self._counterparts
        if own is None:
            taken = self._recording.with_script_numbers(variant.recording.script_numbers)
            own = {leaf.value: leaf for leaf in taken.leaves}
        host, first = variant.shape.host, variant.recording
        leaves = {leaf.value: own.get(leaf.value, leaf) for leaf in first.program_inputs}
        given = {ref: leaf.tensor.detach() for ref, leaf in leaves.items()}
        if host:
            batch = [given[leaf.value] for leaf in first.of(LeafSource.INPUT)]
            given.update(host.of_recorded(batch, {ref: given[ref] for ref in host.given}))
        return tuple(given.values())

    def changed_values(self, variant: StepVariant) -> ChangedValues | None:
        """Return the script's values that are others than a variant's, if nothing else differs.

        None if more does.
        """
        if variant.trains != (self._recording.loss is not None):
            return None
        first, own = variant.recording, self._recording
        return changed_values(first, variant.goals, own, self._goals())

    def line_of(self, changed: ChangedValues) -> str:
        """Return the user's line of one of the values that have changed."""
        return changed.first_line(self._recording)

    def take_with_step(self, changed: ChangedValues, like: StepVariant) -> None:
        """Have the step's program take values with each step, besides what a variant's takes."""
        first = like.recording
        own = self._recording.with_script_numbers(first.script_numbers)
        own = own.with_script_tensors({leaf.value for leaf in first.of(LeafSource.SCRIPT)})
        self._recording = changed.taken_from(own)

    def variant(
        self, batches: Batches, mode: RunMode, inputs: Mapping[Ref, Slot] | None = None
    ) -> StepVariant:
        """Return a new variant. inputs: slots of the batch, if another variant has such batches."""
        recording = self._recording
        if mode is RunMode.EVAL:
            require_evaluation(recording)
        if recording.script_leaves or batches.is_pushed:
            batches = Batches(batches.loader, batches.number, is_pushed=True)
        variant = StepVariant(recording, self._shape(inputs), batches, mode, self._goals())
        if recording.loss is not None:
            self._require_returned(recording, recording.loss)
        variant.outputs = self._read_of(variant)
        variant.constants = self._constants(variant.shape)
        return variant

    def _shape(self, inputs: Mapping[Ref, Slot] | None) -> LoopShape:
        return LoopShape(self._recording, self._batch_refs, self.calls.found, inputs)

    def _constants(self, shape: LoopShape) -> list[Constant]:
        """Return the constants whose numbers no call of the loop compares."""
        plain, counters = self._recorder.plain, self._recording.counters
        made = (
            Constant(tensor, leaf.tensor, leaf.name, leaf.value in plain.buffers)
            for tensor, leaf in plain.constants()
            if leaf.name not in counters
        )
        return [each for each in made if not shape.compares(each.tensor)]

    def _read_of(self, variant: StepVariant) -> tuple[Ref, ...]:
        """Return the values that the loop reads, or that calls beside the loss give."""
        recording, calls = self._recording, self.calls.found
        read = [r.value for r in recording.reads if is_of_forward(recording, r.value)]
        if recording.loss is None:
            results = [c.results for c in calls if c.name != MODEL or not read]
        else:
            loss = ancestors(recording, [recording.loss])
            results = [c.results for c in calls if loss.isdisjoint(refs_in(c.results))]
        read += [ref for ref in refs_in(results) if is_of_forward(recording, ref)]
        found = dict.fromkeys(variant.shape.bases_of(recording, read))
        for each in recording.reads:
            if not is_of_forward(recording, each.value):
                found.update(dict.fromkeys(self._gradients_of(variant, each.value)))
        return tuple(found)

    def _goals(self) -> list[Ref]:
        """Return the values that the step is computed for."""
        recording = self._recording
        if recording.loss is not None:
            return [recording.loss, *recording.gradients.values(), *recording.written.values()]
        results = [call.results for call in self.calls.found if call.name == MODEL]
        return [leaf for leaf in tree_leaves(results) if isinstance(leaf, Ref)]

    def join(self, variant: StepVariant, are_edits_apart: bool) -> None:
        """Have a variant, which computes the same, return what the loop reads of this step.

        are_edits_apart: as of `difference`
        """
        if not self.is_same(variant):
            goals, own = self._compared(variant, are_edits_apart)
            self._counterparts = counterparts(variant.recording, goals, self._recording, own)
        read = (
            self._recording.loss,
            self._recording.reads,
            *(call.made for call in self.calls.found),
        )
        is_repeated = self._recording.has_operators_of(variant.recording)
        if not is_repeated or variant.joined != read:
            variant.wanted.update(dict.fromkeys(self._read_of(variant)))
            variant.joined = read if is_repeated else ()

    def difference(self, variant: StepVariant, are_edits_apart: bool) -> str:
        """Return what differs from the first step of a variant, with its line; else empty text.

        are_edits_apart: edits of gradients are not compared
        """
        trains = self._recording.loss is not None
        if variant.trains != trains:
            return f"{user_line()}: backward() is called in some steps and not in others"
        goals, own = self._compared(variant, are_edits_apart)
        if found := difference(variant.recording, goals, self._recording, own):
            return found
        before, now = variant.recording.host_leaves, self._recording.host_leaves
        if [leaf.tensor.shape for leaf in before] != [leaf.tensor.shape for leaf in now]:
            return f"{self.host_line}: the shape of a result differs from step 1"
        return ""

    def _compared(
        self, variant: StepVariant, are_edits_apart: bool
    ) -> tuple[Sequence[Ref], Sequence[Ref]]:
        """Return the values of a variant and of the step that are compared."""
        if are_edits_apart and variant.trains:
            return variant.recording.before_edits, self._recording.before_edits
        return variant.goals, self._goals()

    @property
    def has_read_gradients(self) -> bool:
        """True if the loop has read numbers of the gradients before the end of the step."""
        return not all(is_of_forward(self._recording, r.value) for r in self._recording.reads)

    @property
    def is_numbered_alike(self) -> bool:
        """True if equal numbers name equal values here and in the step's variant."""
        return self._counterparts is None

    def has_other_shapes(self, variant: StepVariant) -> bool:
        """True if the batch gives a result another shape than in a variant."""
        return has_other_shapes(variant.recording, self._recording)

    def is_same(self, variant: StepVariant) -> bool:
        """True if the step is recorded exactly as the first one of a variant."""
        return self.changed_values(variant) == ChangedValues()

    def takes_over(self, variant: StepVariant, inputs: Mapping[Ref, Slot] | None) -> bool:
        """Make a variant of an earlier Session one of this, if the step computes the same."""
        recording = self._recording
        if self.difference(variant, are_edits_apart=False):
            return False
        if not are_numbered_alike(variant.recording, recording):
            return False
        script_tensors = {leaf.value for leaf in variant.recording.of(LeafSource.SCRIPT)}
        self._recording = recording = recording.with_script_tensors(script_tensors)
        variant.recording, variant.goals, variant.shape = (
            recording,
            self._goals(),
            self._shape(inputs),
        )
        variant.constants = self._constants(variant.shape)
        variant.wanted.update(dict.fromkeys(self._read_of(variant)))
        return True

    def answer(
        self,
        variant: StepVariant,
        returned: Callable[[Ref], torch.Tensor | None],
        norm: Callable[[torch.dtype], torch.Tensor],
    ) -> None:
        """Answer reads of the step's traced tensors with numbers, after it is over.

        What is read now is returned by later steps of the variant, too. returned: gives the value
        that its program returns, None for another.
        """
        recording, draw, run = self._recording, self._draw, self._before.run
        before = StepWeights(recording)
        run.users.before.add(before)
        self._own_weights = lambda: before.weights or self._weights()

        def computed(ref: Ref) -> Mapping[Ref, torch.Tensor]:
            if run.users.is_in_file and self._before.values.status.has_values:
                raise GoneError(
                    f"{user_line()}: in the first steps of a model built by cbtorch.meta_init(), "
                    "values must be read before the step's loss: move this line up"
                )
            return interpret(recording, [ref], self._own_weights(), draw)

        def number_of(traced: TracedTensor) -> torch.Tensor:
            if (found := returned(traced.value)) is not None:
                return found
            if not is_of_forward(recording, traced.value):
                total = norm_in(recording, traced.value)
                if total is None:
                    variant.wanted.update(dict.fromkeys(self._gradients_of(variant, traced.value)))
                    return self._before.number_of(
                        traced.value,
                        lambda: {traced.value: self.gradients.number(recording, traced.value)},
                    )
                known = {total: norm(recording.kind(total).dtype)}
                return self._computed(recording, [traced.value], known)[traced.value]
            weight = recording.viewed_parameter(traced.value)
            if weight and self._before.values.updates != run.updates:
                raise view_is_stale(weight)
            self._require_returned(recording, traced.value)
            variant.wanted.update(dict.fromkeys(variant.shape.bases_of(recording, [traced.value])))
            return self._before.number_of(traced.value, lambda: computed(traced.value))

        self._recorder.reader, self._recorder.later = number_of, self._later

    def _later(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the lazy result of a function of values; None if it takes weights, too."""
        leaves, numberless = leaves_of(args, kwargs), (TracedTensor, Numbers)
        own = [x for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, numberless)]
        if any(map(self._recorder.name_of, own)):
            return None
        return self.calls.later(func, args, kwargs)


def _no_end() -> None:
    raise AssertionError("given before it is recorded")


def _ref_of(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, TracedTensor) else leaf
