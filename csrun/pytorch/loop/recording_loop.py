"""Steps that are recorded: those that a loop begins with, and those that differ from step 1."""

from functools import partial

import torch

from csrun.base.mode import RunMode
from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.loop_base import LoopBase
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.loop.recorded_gradients import ReturnedGradients, gradients_after
from csrun.pytorch.loop.recorded_reads import ReplayedReads
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.loop.traced_tokens import TracedTokens
from csrun.pytorch.loop.variant_cache import Key
from csrun.pytorch.lower.dropout_masks import MaskKey
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.reuse.operator_cache import CachedOperators
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.step.step_outputs import StepOutputs
from csrun.pytorch.step.step_status import StepPhase, StepStatus


class RecordingLoop(LoopBase):
    """A loop whose steps can be recorded."""

    def _record(self, step: LoopStep, key: Key, *, follows: bool = False) -> RecordedStep:
        """Start to record a step. key: of its variant, which may be known.

        follows: it may follow the calls of earlier steps, since all steps of its part are recorded.
        """
        run = self._run
        self.watch.require_in_place()
        run.flush()
        run.read_weights()  # values requested from this step are computed with the current weights
        recorded = self.RECORDED(
            self._model,
            step.batches.loader.batch(step.batch),
            key,
            self._later,
            MaskKey(run.run.config.seed, run.replay.step, self._gradients.batches),
            ReplayedReads(run, step.outputs),
            self._begin_gradients,
            self.TAKES_ARGUMENTS or step.batches.is_pushed,
            self._known_operators.setdefault(key[:3], CachedOperators()),
            follows,
        )
        recorded.end_early, recorded.calls.untracked = self._end_early, self._untracked
        recorded.before_read = self._note_numbers
        return recorded

    def _note_numbers(self) -> None:
        """Note the optimizer's numbers when a value of the step is first read."""
        step = self._step
        if self._optimization is None or step is None:
            return
        if step.numbers_at_read is None:
            step.numbers_at_read = self._optimization.current_numbers()

    def _record_if_numbers_change(self, step: LoopStep, recorded: RecordedStep) -> None:
        """Record all further steps if the optimizer's numbers have changed since a value was read.

        The program of another step would run with the old ones when the value is read.
        """
        assert self._optimization is not None, "of a training"
        if step.numbers_at_read not in (None, self._optimization.current_numbers()):
            cause = f"{user_line()}: lr or weight_decay change between a read and optimizer.step()"
            self._variants.record_all(recorded, cause)

    def _record_after_all(self, cause: str) -> RecordedStep | None:
        """Record the current step because it differs from step 1.

        Repeats its calls so far. Return None if it cannot be recorded: it has run because one of
        its values was read, or its calls would give other results now.

        cause: reason why all further steps are recorded; empty if they need not be.
        """
        began = self._step
        if began is None or began.variant is None or began.status.phase is not StepPhase.TOKENS:
            return None
        if began.status.is_queued and began.trains:
            return None
        if not began.may_be_made_again(self._state):
            return None
        self._weight_calls.end()
        if began.changed:
            self._revalidations.forget(began.variant)
        outputs = StepOutputs(
            began.outputs.number,
            StepStatus(StepPhase.RECORDING),
            batch=began.outputs.batch,
            updates=began.outputs.updates,
        )
        key = (began.batches.loader, began.rows, *self._state())
        step = LoopStep(outputs, began.batches, began.batch, guards=key[-1], rows=began.rows)
        step.recorded = recorded = self._record(step, key)
        recorded.close_first(self._weight_calls.remove)
        self._step = step
        arrays = began.variant.shape.arrays
        traced = TracedTokens(recorded, began.outputs, arrays, self._state, self._modes)
        state = torch.get_rng_state() if began.has_drawn else None
        for made in began.calls:
            traced.call_again(made)
        if state is not None:  # the loop may have drawn since
            torch.set_rng_state(state)
        recorded.calls.traced = traced.of
        if cause:
            self._variants.record_all(recorded, cause)
            self._run.recorded_steps[cause] += 1
        return recorded

    def _learn(self, step: LoopStep, recorded: RecordedStep, mode: RunMode) -> None:
        """Create a variant from a recorded step, or compare it with its variant."""
        if cause := self._guards.take_cause() or recorded.cause:
            self._variants.record_all(recorded, cause)
        is_one_of_many = bool(self._variants.cause_of(recorded.key))
        recorded.finish(self._run.stored_names, is_one_of_many=is_one_of_many)
        variant = step.variant = self._revalidations.note_forward(
            self._variants.learn(step, recorded, mode)
        )
        if cause := variant.cause_of_forward:
            self._variants.record_all(recorded, cause)
        outputs, graph = step.outputs, recorded.graph
        outputs.rows = graph.rows
        loss, has_same_numbering = graph.recording.loss, graph.has_same_numbering

        def returned(value: Ref) -> torch.Tensor | None:
            slot = variant.shape.loss
            if value != loss:
                may_come = value in variant.outputs and not outputs.status.has_values
                is_returned = may_come or value in outputs.outputs
                is_known = is_returned and has_same_numbering
                slot = variant.shape.slot_of(value) if is_known else None
            return self.readback.read(outputs, slot) if slot is not None else None

        def norm(dtype: torch.dtype) -> torch.Tensor:
            return self.readback.read(outputs, self._gradients.reads.norm_slot(dtype))

        recorded.answer(variant, returned, norm)
        if variant.trains:
            if graph.has_read_gradients or recorded.calls.has_checked_gradients:
                self._gradients.note_read()
            gradients = recorded.gradients
            gradients.returned = ReturnedGradients(self.readback, variant, outputs)
            of_parameter = partial(gradients.of_parameter, graph.computed)
            known = partial(gradients_after, of_parameter, self.readback)
            outputs.set_gradients(None if step.place else known)

    def _begin_gradients(self) -> frozenset[str]:
        """Start `backward()` in a recorded step, whose gradients are PyTorch's own.

        Returns the names of gradients that are already zero.

        Raises: UsageError if gradients exist that it may not add to
        """
        step = self._step
        assert step is not None, "a step is open"
        assert step.recorded is not None, "the step is recorded"
        self.scaled_loss.begin_backward()
        step.place = self._gradients.added_to()
        step.status.enter(StepPhase.BACKWARD)
        step.recorded.draw_as(step.place)
        self._gradients.discard_lazy()
        return self._gradients.zeros if not step.place else frozenset()

    def _end_recorded(self, step: LoopStep, recorded: RecordedStep) -> None:
        """Create a variant of a recorded step with all edits of its gradients."""
        self._take_groups()
        self._learn(step, recorded, RunMode.TRAIN)
        assert step.variant is not None, "learned"
        if self._run.accumulates:
            step.variant = self._variants.ended(step.variant, recorded)
        self._accumulation.end_recorded(step)

    def _end_early(self) -> None:
        """End the recording of a step before `optimizer.step()`; later edits are recorded as
        edits.
        """
        step = self._step
        assert step is not None, "it is recorded"
        recorded = step.recorded
        assert recorded is not None, "the step is recorded"
        with unrecorded():
            self._end_recorded(step, recorded)
            recording = recorded.graph.computed
            first = partial(recorded.gradients.of_parameter, recording)
            names, outputs = recording.first_gradients, step.outputs
            find = None if step.place else self._gradients.finder(lambda _: first)
            self._gradients.begin(names, outputs, find)
