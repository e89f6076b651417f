"""Steps of a Session's loop: each is started, recorded or run on tokens, and queued.

`csrun.pytorch.step.step_status` has the status of a step; this module changes it.
"""

import logging
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from csrun.base.mode import RunMode
from csrun.pytorch.errors import CaptureError, failure_of
from csrun.pytorch.gradients.deferred import Gradients
from csrun.pytorch.gradients.edits import Edit
from csrun.pytorch.guards import Guards
from csrun.pytorch.loader.iterated import UNKNOWN, WINDOW
from csrun.pytorch.loop import call_order
from csrun.pytorch.loop.gradient_accumulation import GradientAccumulation
from csrun.pytorch.loop.host_calls import HostCalls
from csrun.pytorch.loop.late_calls import late_calls
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.loop.readback import Readback
from csrun.pytorch.loop.recorded_gradients import ReturnedGradients, gradients_after
from csrun.pytorch.loop.recorded_reads import ReplayedReads
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.loop.revalidation import Revalidations
from csrun.pytorch.loop.scaled_loss import ScaledLoss
from csrun.pytorch.loop.script_steps import ScriptSteps
from csrun.pytorch.loop.traced_tokens import TracedTokens
from csrun.pytorch.loop.user_state import UserState
from csrun.pytorch.loop.variant_cache import Key, VariantCache
from csrun.pytorch.loop.weight_guard import WeightCalls, WeightGuard
from csrun.pytorch.lower.dropout_masks import MaskKey
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.record.operator_cache import CachedOperators
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.mutation_counters import Modes
from csrun.pytorch.step.queued_step import QueuedStep, QueuedWork
from csrun.pytorch.step.step_outputs import StepOutputs
from csrun.pytorch.step.step_status import StepPhase, StepProgress, StepStatus
from csrun.pytorch.step.tokens import LazyTensor
from csrun.pytorch.step.variant import Batches
from csrun.pytorch.user import SessionLoader

log = logging.getLogger("csrun")


class LoopSteps:
    """Steps of a loop; `SessionLoop` has the loop's calls.

    line: source line of the Session; a later Session on that line shares its variants.
    forward: the model's own.
    recorded_for: reason why all steps are recorded; empty if only the first ones are.
    user: state of the user's objects.
    watch: guards the model's tensors between steps.
    scaled_loss: scaling by GradScalers.
    """

    RECORDED: ClassVar[type[RecordedStep]] = RecordedStep
    TAKES_ARGUMENTS: ClassVar = False  # also if a loader gives the batch

    def __init__(
        self,
        run: ScriptRun,
        line: str,
        model: torch.nn.Module,
        optimization: Optimization | None,
        forward: Callable[..., Any],
        recorded_for: str,
    ) -> None:
        self._run, self._model, self._optimization, self._line = run, model, optimization, line
        self._trainable = list(model.parameters())
        self._variants = VariantCache(
            run,
            (line, optimization is not None),
            model,
            lambda: self._guards.changed,
            recorded_for,
        )
        self._step: LoopStep | None = None
        self._known_operators: dict[Key, CachedOperators] = {}  # by part of the loop
        self.has_begun = self._is_over = False
        self._script_steps = ScriptSteps(run)
        self.user = UserState(self, run, model, optimization)
        self.watch = WeightGuard(model, self.user)
        sets = self.watch.module_sets
        self._guards = Guards(model, sets.of_forward(forward), sets)
        self._forward = late_calls.within(self._guards.forward)
        self._modes = Modes(model, self.watch.sets)
        trained = () if optimization is None else optimization.parameters
        self._gradients = Gradients(
            self, model, trained, self.watch.name_of, self.watch.sets, run.left_gradients
        )
        self.scaled_loss = ScaledLoss(run, optimization)
        self._accumulation = GradientAccumulation(model, optimization, self._gradients)
        self.readback = Readback(self, run)
        self._host_calls = HostCalls(run, model, forward)
        self._revalidations = Revalidations(model, run, self.watch.module_sets)
        self._weight_calls = WeightCalls(self._called)

    @property
    def step(self) -> LoopStep | None:
        """The current step."""
        return self._step

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
        self.user.look()
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

        Raises: UsageError if the pass is read after the block
        """
        self.end_step()
        call_order.require_read_to_end(loader.orders)
        batches = self._run.batches_of(loader)
        self._run.look_at_data()
        batches.begin(self._run.flush)
        epoch, length = loader.orders.begun - 1, loader.length
        with batches.pass_open(), self._run.pass_open():
            for position in range(min(length, batches.most)):
                number = epoch * length + position
                if length == UNKNOWN:
                    if position % (WINDOW // 2) == 0:  # later batches move out of the window
                        self._run.flush()
                    if not loader.has(number):
                        break
                yield self._begin_step(batches, number, loader.orders.rows(epoch, position))
            self.end_step()
            self._run.look_at_data()
        loader.orders.is_in_progress = False

    def _begin_step(self, batches: Batches, number: int, rows: int | None) -> Any:
        call_order.require_block(self._is_over)
        self.end_step()
        loader, run = batches.loader, self._run
        if not self.has_begun:
            run.read_user_weights()
            self.watch.begin()
            self.has_begun = True
        self.watch.look()
        run.read_written_weights()
        self.user.look()
        key = (loader, rows, *self._state())
        variant = self._variants.at(*key)
        batch = partial(loader.batch, number, loader.changes.taken)
        known, given = self._variants.checked(variant, key, batch)
        status = StepStatus(StepPhase.RECORDING if known is None else StepPhase.TOKENS)
        outputs = StepOutputs(run.count, status, batch=batch, updates=run.updates)
        self._step = step = LoopStep(
            outputs, batches, number, known or variant, guards=key[-1], rows=rows
        )
        run.count += 1
        if known is not None:
            step.take_variant(known, given)
            if known.shape.takes_weights:
                self._weight_calls.begin()
            return known.shape.tokens_of_batch(self, outputs)
        if cause := self._variants.cause_of(key):
            run.recorded_steps[cause] += 1
        step.recorded = self._record(step, key, follows=bool(cause))
        return step.recorded.batch

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
        recorded.end_early = self._end_early
        return recorded

    def _record_after_all(self, cause: str) -> RecordedStep | None:
        """Record the current step because it differs from step 1.

        Its calls so far are repeated. None if it cannot be recorded: it has run, since a value of
        it was read, or the calls would compute something else now.

        cause: reason why all further steps are recorded; empty if they need not be.
        """
        began = self._step
        if began is None or began.variant is None or began.status.phase is not StepPhase.TOKENS:
            return None
        if began.status.is_queued and began.trains:
            return None
        if not began.may_be_made_again(*self._state()):
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
        self._step = step
        arrays = began.variant.shape.arrays
        traced = TracedTokens(recorded, began.outputs, arrays, self._state)
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

    def end_step(self) -> None:
        """End the current step: the loop takes the next batch, or the pass is over."""
        self._leave_step()
        self.readback.settle()

    def _leave_step(self) -> None:
        self._weight_calls.end()
        step, self._step = self._step, None
        if step is None or step.status.is_over:
            return
        if step.recorded is not None:
            step.recorded.close()
        call_order.require_followed(step, self._run.accumulates)
        if step.has_gradients:
            self._leave_open(step)
        else:
            self._leave_evaluation(step)

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

    def _take_groups(self) -> None:
        """Update groups that the loop has added to the optimizer, from this step on."""
        optimization = self._optimization
        if optimization is None or not optimization.has_new_groups:
            return
        self._run.flush()
        added = optimization.take_groups()
        self._gradients.add_optimized(added)
        self._accumulation.add_optimized(added)

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
        loss, is_numbered_alike = graph.recording.loss, graph.is_numbered_alike

        def returned(value: Ref) -> torch.Tensor | None:
            slot = variant.shape.loss
            if value != loss:
                may_come = value in variant.outputs and not outputs.status.has_values
                is_returned = may_come or value in outputs.outputs
                is_known = is_returned and is_numbered_alike
                slot = variant.shape.slot_of(value) if is_known else None
            return self.readback.read(outputs, slot) if slot is not None else None

        def norm(dtype: torch.dtype) -> torch.Tensor:
            return self.readback.read(outputs, self._gradients.reads.norm_slot(dtype))

        recorded.answer(variant, returned, norm)
        if variant.trains:
            if graph.has_read_gradients:
                self._gradients.note_read()
            gradients = recorded.gradients
            gradients.returned = ReturnedGradients(self.readback, variant, outputs)
            of_parameter = partial(gradients.of_parameter, graph.recording)
            known = gradients_after(outputs, of_parameter, self.readback)
            outputs.gradients = None if step.place else known

    def _queue(
        self, step: LoopStep, numbers: tuple[float, ...], work: QueuedWork = QueuedWork.STEP
    ) -> None:
        assert step.variant is not None, "known by now"
        place = step.place + (work is QueuedWork.UPDATE)
        inputs = None
        if work is not QueuedWork.UPDATE:
            step.status.advance(StepProgress.QUEUED)
            step.numbers = numbers
            if step.recorded is not None:
                self._run.read_forward_writes(
                    step.recorded.written_weights, step.recorded.live_counters
                )
            replay = self._run.replay
            self._run.users.integers.count(replay.done + 1, step.counters, replay.step)
            inputs = step.inputs
        queued = QueuedStep(step.variant, step.outputs, step.batch, numbers, place, work, inputs)
        self._run.queue(queued)

    def _begin_gradients(self) -> frozenset[str]:
        """Start `backward()` in a recorded step, whose gradients are PyTorch's own.

        Returns the names of gradients that are already zero.

        Raises: UsageError if gradients exist that it may not add to
        """
        step = self._step
        assert step is not None, "it is"
        assert step.recorded is not None, "it is"
        self.scaled_loss.begin_backward()
        step.place = self._gradients.added_to()
        step.status.enter(StepPhase.BACKWARD)
        step.recorded.draw_as(step.place)
        self._gradients.discard_lazy()
        return self._gradients.zeros if not step.place else frozenset()

    def _state(self) -> tuple[tuple[bool, ...], int]:
        """Return the modes of the model's modules and the state of its guards."""
        return self._modes(), self._guards.state()

    # Calls of the loop.

    def apply(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def backward(self, token: LazyTensor) -> None:
        raise NotImplementedError

    def norm_edit_of(self, outputs: StepOutputs) -> Edit | None:
        raise NotImplementedError

    def run_early(self, outputs: StepOutputs, *, with_update: bool = False) -> None:
        raise NotImplementedError

    @property
    def accumulates(self) -> bool:
        """True if a step may have several batches."""
        return self._run.accumulates

    def _later(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def _called(self, name: str, func: Any, args: Any, kwargs: Any, how: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    def _end_early(self) -> None:
        raise NotImplementedError
