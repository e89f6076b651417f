"""Steps of a Session's loop: each is started, recorded or run on tokens, and queued.

`csrun.pytorch.step.step_status` has the status of a step; this module changes it.
"""

import logging
from collections.abc import Generator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from csrun.base.mode import RunMode
from csrun.pytorch.errors import CaptureError, failure_of
from csrun.pytorch.loader.iterated import UNKNOWN, WINDOW
from csrun.pytorch.loop import call_order
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.loop.recording_loop import RecordingLoop
from csrun.pytorch.loop.variant_cache import Key
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.loop_calls import MODEL
from csrun.pytorch.step.queued_step import QueuedWork
from csrun.pytorch.step.step_outputs import StepOutputs
from csrun.pytorch.step.step_status import StepPhase, StepStatus
from csrun.pytorch.step.tokens import has_values_of_steps
from csrun.pytorch.step.variant import Batches, StepVariant
from csrun.pytorch.user import SessionLoader

log = logging.getLogger("csrun")


class LoopSteps(RecordingLoop):
    """Steps of a loop, from one batch to the next; `SessionLoop` has the loop's calls."""

    _late_error: Exception | None = None  # of an evaluation that ended with its generator
    _made: Any = None  # the batch of a loader whose batches this process makes

    def end(self) -> None:
        """End the last step and the loop."""
        self.end_step()
        if not self.has_begun and self._optimization is not None:
            log.warning(
                f"{self._line}: no batch of a cbtorch.dataloader was taken in this Session's "
                "block: nothing ran on the system; iterate over one in the block"
            )
        if self.has_begun:
            self.watch.require_in_place()
            self._revalidations.end(self._forward, self._modes, self._guards.state())
        self.user.check_writes()
        self._accumulation.warn_of_unused_gradients()
        self._is_over = True

    def stop(self, error: BaseException) -> CaptureError | None:
        """End the loop after an error; return the error to raise instead in a recorded step."""
        self._weight_calls.end()
        said, self._is_over = None, True
        if self._step is not None and self._step.recorded is not None:
            said = failure_of(error, self._model)
            self._step.recorded.close()
        self._step = None
        for parameter in self._trainable:
            if isinstance(parameter.grad, TracedTensor):
                parameter.grad = None
        return said

    def forget_gradients(self) -> None:
        """Remove the lazy gradients from the parameters; the run remembers which had one."""
        self._run.left_gradients = self._gradients.with_gradient
        self._gradients.end_block()

    def batches(self, loader: SessionLoader) -> Generator[Any]:
        """Yield the batches of one pass over a loader.

        Raises: UsageError if the iterator is used after the block
        """
        self.end_step()
        call_order.require_read_to_end(loader.orders)
        batches = self._run.batches_of(loader)
        self._run.apply_data_changes()
        batches.begin(self._run.flush)
        epoch, length = loader.orders.begun - 1, loader.length
        is_varying = loader.is_varying(epoch * length)
        with batches.pass_open(), self._run.pass_open():
            for position in range(min(length, batches.most)):
                number = epoch * length + position
                if length == UNKNOWN:
                    if position % (WINDOW // 2) == 0:  # later batches move out of the window
                        self._run.flush()
                    if not loader.has(number):
                        break
                if is_varying:  # a call of the model begins the step
                    self.end_step()
                    self._made = batch = loader.batch(number)
                    yield batch
                    continue
                try:
                    yield self._begin_step(batches, number, loader.orders.rows(epoch, position))
                except GeneratorExit:
                    self._leave_pass(batches, number)
                    raise
            self.end_step()
            self._made = None
            self._run.apply_data_changes()
        loader.orders.is_in_progress = False

    def _is_host_call(self, leaves: list[Any]) -> bool:
        """True if the loop calls the model on tensors that are not of a batch, without gradients.

        leaves: arguments of the call, flat.
        """
        if torch.is_grad_enabled() or has_values_of_steps(leaves):
            return False
        made = [x for x in tree_leaves(self._made) if isinstance(x, torch.Tensor)]
        return not any(leaf is x for leaf in leaves for x in made)

    def _begin_step(self, batches: Batches, number: int, rows: int | None) -> Any:
        """Begin a step, and return its batch: as tokens, or traced if it is recorded."""
        if self._is_over:
            raise call_order.read_after_block()
        self.end_step()
        loader, run, given = batches.loader, self._run, None
        self._apply_script_changes()
        key = (loader, rows, *self._state())
        batch = partial(loader.batch, number, loader.changes.taken)
        variant = known = self._variants.reuse_last(key)
        if known is None:
            variant = self._variants.at(*key)
            known, given = self._variants.checked(variant, key, batch)
        if known is not None and self._is_recorded_again(known):
            known = None
        status = StepStatus(StepPhase.RECORDING if known is None else StepPhase.TOKENS)
        outputs = StepOutputs(run.count, status, batch, run.updates)
        self._step = step = LoopStep(outputs, batches, number, known or variant, key[-1], rows)
        run.count += 1
        if known is None:
            return self._begin_recorded(step, key)
        if given is not None:
            step.take_results(given)
        if known.shape.takes_weights or self.HAS_UPDATES:
            self._weight_calls.begin()
        return known.shape.tokens_of_batch(self, outputs)

    def _begin_recorded(self, step: LoopStep, key: Key) -> Any:
        if cause := self._variants.reason_to_record(key):
            self._run.recorded_steps[cause] += 1
        step.recorded = self._record(step, key, follows=bool(cause))
        return step.recorded.batch

    def _is_recorded_again(self, variant: StepVariant) -> bool:
        """True if the next step of a checked variant is recorded."""
        return False

    def _apply_script_changes(self) -> None:
        """Apply the script's changes since the last step; check that they are allowed."""
        if not self.has_begun:
            self._run.read_user_weights()
            self.watch.begin()
            self.has_begun = True
        self.watch.check_writes()
        if self._run.are_written:
            self._run.read_written_weights()
        self.user.check_writes()

    def end_step(self) -> None:
        """End the current step: the loop takes the next batch, or the pass is over."""
        if (error := self._late_error) is not None:
            self._late_error = None
            raise error
        self._leave_step()
        self.readback.settle()

    def _leave_step(self) -> None:
        step, self._step = self._step, None
        if self._weight_calls.is_on:
            self._weight_calls.end()
        if step is None or step.status.is_over:
            return
        if step.recorded is not None:
            step.recorded.close()
        call_order.require_followed(step, self._run.accumulates)
        if step.status.has_gradients:
            self._leave_open(step)
        else:
            self._leave_evaluation(step)

    def _leave_pass(self, batches: Batches, number: int) -> None:
        """Read and write weights in the store after a `break` behind the model's call of this
        batch: end an evaluation that is recorded.

        A loop that takes one batch by `next(iter(loader))` has not called the model.
        """
        step = self._step
        if step is None or step.batches is not batches or step.batch != number:
            return
        if step.recorded is None:
            if step.calls:
                self._weight_calls.end()
        elif not step.status.is_over and _is_left_evaluation(step.recorded):
            try:
                self.end_step()
            except Exception as error:  # Python ignores errors of a generator that it frees
                self._late_error = error

    def _leave_evaluation(self, step: LoopStep) -> None:
        """End a step without `backward()`."""
        step.status.enter(StepPhase.OVER)
        recorded = step.recorded
        if recorded is not None:
            if recorded.calls.found:  # otherwise nothing was done with the batch
                self._learn(step, recorded, RunMode.EVAL)
                self._queue(step, ())
        elif step.calls and not step.trains and not step.status.is_queued:
            step.calls.clear()
            self._queue(step, ())

    def _leave_open(self, step: LoopStep) -> None:
        """End a batch after `backward()`: the next batch is accumulated into its gradients."""
        recorded = step.recorded
        call_order.require_optimizer(self._optimization)
        self._take_groups()
        self._run.accumulate()
        if recorded is not None:
            recorded.is_left = True
            self._learn(step, recorded, RunMode.TRAIN)
        self._accumulation.leave(step)
        step.status.enter(StepPhase.OVER)
        step.calls.clear()
        if not step.status.is_queued:
            self._queue(step, (), QueuedWork.BATCH)


def _is_left_evaluation(recorded: RecordedStep) -> bool:
    """True if nothing but calls on its results may follow in an evaluation."""
    if recorded.is_finished or recorded.has_loss or torch.is_grad_enabled():
        return False
    return any(call.name == MODEL for call in recorded.calls.found)
