"""A training: drives a machine's steps, and writes the run's output to model_dir."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter_ns
from types import TracebackType
from typing import Self

from csrun.base.errors import CsrunError
from csrun.context.deferred_termination import DeferredTermination, reason_to_end
from csrun.executable import MOST_STEPS, StepNumber
from csrun.executable.arrays import Array
from csrun.executable.loss_scale import ScaleState
from csrun.records.ledger import Row, StepTimes
from csrun.runtime.chief.machine import Machine, OrderedSteps, Program
from csrun.runtime.chief.training.range_reports import first_overflow, range_reports
from csrun.runtime.chief.training.step_end import StepEnd
from csrun.runtime.chief.training.step_orders import (
    NotFiniteLossError,
    OrderSplitter,
    Show,
    no_counted_labels,
)
from csrun.runtime.chief.training.tracing import ChiefTrace
from csrun.runtime.chief.training.training_checkpoints import TrainingCheckpoints
from csrun.runtime.chief.training.training_record import LoopOptions, TrainingRecord
from csrun.runtime.chief.training.update_reports import UpdateReports
from csrun.runtime.step.results import HostCall, StepResult
from csrun.runtime.step.scale_rows import scale_tracker
from csrun.runtime.step.step_numbers import StepNumbers
from csrun.runtime.step.trace import SpanKind
from csrun.runtime.wire.messages import AccumulatedBatches, Results, StepOrder, StepsDone

log = logging.getLogger("csrun")


class Training:
    """One training run on a loaded machine, a context manager: `advance` until `is_over`, then
    `finish`.

    After a signal to end it saves at the next step boundary and then lets the signal take effect.
    The context may be left and entered again, for a script that trains in several blocks; in
    between, signals take effect immediately, and no file is open.

    record: measurements of the run.
    step: next global step.
    taken: called with steps (the first one, and their number) before anything is written about
        them; with gradient accumulation, with batches.
    step_end: program that ends each step, if any; orders then have one step.
    """

    def __init__(
        self,
        machine: Machine,
        options: LoopOptions,
        host: HostCall | None,
        show: Show,
        taken: Callable[[int, int], None] = lambda first, count: None,
        step_end: StepEnd | None = None,
    ) -> None:
        self._machine = machine
        self._options = options
        self._trace = ChiefTrace(
            machine, options.settings.trace_steps, options.model_dir, options.first
        )
        self.record = TrainingRecord(machine, options, host, show)
        self._taken = taken
        self._loss = float("nan")
        self._loss_so_far = 0.0  # of a step with uncomputed batches
        self._ending = DeferredTermination(machine.has_lost_peer, options.grace_s)
        # Each splitter learns the time of its program's steps.
        self._orders: dict[Program, OrderSplitter] = {}
        self.use(machine)
        self._numbers = StepNumbers(machine.numbers, machine.plan.store.numbers)
        self._scale = scale_tracker(machine.plan, machine.numbers, options.first_scale)
        self._checkpoints = TrainingCheckpoints(
            machine, options, self._ending, self._scale, self.record, self._trace
        )
        self._ranges = range_reports(machine, options.model_dir, options.number_ranges)
        self._updates = UpdateReports(machine, options.of_updates)
        self._open = ExitStack()
        self._is_asked = self._is_at_end = False
        self._step_end = step_end
        self._result: StepResult | None = None  # of the last step, if it took one batch
        self._ordered_ns = 0  # time of the last order
        self.step = options.first

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            is_first = opened.enter_context(self.record.opened())
            # including the first checkpoint, which takes a while
            opened.enter_context(self._ending)
            # After the signals are deferred: a checkpoint is finished before they take effect.
            opened.push(self._leave)
            if is_first and self.step == 0 and self._options.saves_initial:
                self.save_due()
            self._open = opened.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.record.stop_clocks()
        self._open.__exit__(kind, error, traceback)

    def _leave(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Finish or discard the checkpoint in progress; signals are still deferred."""
        self._checkpoints.saving.end(error)
        if isinstance(error, Exception):
            self._trace.write_partial()

    def run(self) -> Results:
        """Train to the end; return the final step and loss.

        Raises: CsrunError if the loss is not finite; checkpoints written before are kept
        """
        with self:
            while not self.is_over:
                self.advance()
            return self.finish()

    def use(self, program: Program) -> None:
        """Compute the next steps with another program over the machine's store."""
        self._program = program
        if program not in self._orders:
            self._orders[program] = OrderSplitter(program, self._options.last)

    def forget(self, program: Program) -> None:
        """Forget a program, which will compute no more steps."""
        self._orders.pop(program, None)

    @property
    def has_ended(self) -> bool:
        """Return whether a signal has ended the training, after saving what was possible."""
        return self._is_asked

    @property
    def is_over(self) -> bool:
        """Return whether no step follows: last step done, data exhausted, or signalled to end."""
        return self.step == self._options.last or self._is_at_end or self._is_asked

    def advance(self) -> StepsDone:
        """Compute steps, up to the next log line or checkpoint; write the output that is due after
        them.

        Raises: CsrunError if the loss is not finite; the exception of a signal to end
        """
        return self.finish_order(self.order())

    def order(
        self,
        numbers: Sequence[Sequence[float]] = (),
        keeps_all: bool = False,
        accumulation: AccumulatedBatches | None = None,
    ) -> OrderedSteps:
        """Start steps as `advance`, without waiting for them; call `finish_order` next.

        numbers: numbers of the steps from `step` on, if steps have numbers; their rows, at most
            MOST_STEPS, limit the order.
        keeps_all, accumulation: as in `StepOrder`; the loss of a step is the sum of its batches'
            losses.
        """
        options = self._options
        self.require_replaced()
        if numbers:
            self._numbers.put(self.step, numbers)
        if self._scale is not None:
            self._scale.begin(self.step)
        most = 1 if self._step_end else len(numbers) or MOST_STEPS
        if accumulation is not None:
            most = len(accumulation.ends)
        boundaries = [options.log_steps, options.checkpoint_steps]
        if self._ranges is not None:  # a step with an overflow is the last one of its order
            boundaries.append(self._ranges.every if self._scale is None else 1)
        self.record.mark(Row.SCRIPT)
        self._ordered_ns = perf_counter_ns()
        steps = StepOrder(self.step, most, keeps_all, accumulation)
        return self._orders[self._program].begin(steps, tuple(boundaries))

    def finish_order(self, order: OrderedSteps) -> StepsDone:
        """Wait for the started steps; write the output that is due after them, as `advance`."""
        options = self._options
        rest = Row.SCRIPT if order.is_done else Row.CHIEF  # the script was late, or waits
        done = self._orders[self._program].finish(order)
        end_s = self._step_end.run(self.step) if self._step_end and done.done else 0.0
        self._trace.add(SpanKind.ORDER, self.step, self._ordered_ns, max(1, done.done))
        waited_s = sum(use.wait_s for use in done.input)
        waits = waited_s, done.weights_s, done.first_group_s, done.checkpoint_s
        self.record.mark_steps(StepTimes(done.seconds + end_s, *waits), rest)
        first, steps = self.step, self._steps_of(done, order.steps.accumulation)
        exhausted, before = None, self.scale_state
        if self._scale is not None:
            overflow = partial(self._first_overflow, first + steps)
            exhausted = self._scale.finish(first, steps, overflow)
        self.step += steps
        if steps:
            self._checkpoints.writes.end_step()
        self._taken(first, done.done)
        self.record.add(done, steps, waited_s)
        self._is_at_end = done.finished
        if steps:
            began_ns = perf_counter_ns()
            self._report()
            if self._ranges is not None:
                self._ranges.after_step(self.step, before, self.scale_state, self.record.events)
            self._trace.add(SpanKind.LOG, self.step - 1, began_ns)
        self.record.mark(Row.CHIEF)
        if done.bad_loss is not None:
            self._checkpoints.saving.wait()  # this is the last good one
            raise NotFiniteLossError(self._why_stopped(done), done.bad_loss)
        if exhausted is not None:
            raise CsrunError(exhausted)
        # A failed checkpoint ends the training now, instead of at the next one, hours later.
        self._checkpoints.saving.check()
        if steps and options.saves_due:
            self.save_due()
        if self._ending.received is None:
            self._trace.write_if_done(self.step)
        self.record.mark(Row.CHIEF)
        if (asked := self._ending.received) is not None:
            self._is_asked = True
            self._checkpoints.save_before_end(self.step, reason_to_end(asked))
            # of processes that may still be computing
            self._trace.write_if_done(self.step, is_over=True)
            self._ending.__exit__()
        return done

    @property
    def scales(self) -> list[float]:
        """Loss scales in the steps of the last order; empty without loss scaling.

        If the order has ended no step, the scale of the current step.
        """
        return [] if self._scale is None else self._scale.scales or [self._scale.state.scale]

    @property
    def scale_state(self) -> ScaleState | None:
        """Loss scale with its counters; None without loss scaling."""
        return None if self._scale is None else self._scale.state

    @property
    def scale_before(self) -> ScaleState | None:
        """State of the loss scale before the last step; None without loss scaling, or a step."""
        return None if self._scale is None else self._scale.before

    def norms(self, first: int, count: int) -> list[float]:
        """Return the norms of the gradients before clipping, in the steps of the last order."""
        return self._numbers.norms(first, count)

    def write(self, values: Mapping[str, Array]) -> None:
        """Continue from other weights, by name; a checkpoint of the last step keeps the old ones.

        A run that resumes from that checkpoint makes the same change again. The machine must accept
        writes.
        """
        self._checkpoints.saving.wait()
        self._checkpoints.writes.write(values)

    def replace(self, values: Mapping[str, Array]) -> None:
        """Continue from other weights, by name, which the next checkpoint has, unlike with `write`.

        On a machine that accepts no writes a step must not follow.
        """
        self.forget_checkpoint()
        self._checkpoints.writes.replace(values)

    def forget_checkpoint(self) -> None:
        """Write the next checkpoint also if there is one of the same step."""
        self._checkpoints.saving.invalidate()

    def require_replaced(self) -> None:
        """Raises: UsageError if the machine could not take over weights that were replaced"""
        self._checkpoints.writes.require_applied(self.step)

    def save_due(self) -> None:
        """Begin the checkpoint of the last step, if one is due and has not begun."""
        self._checkpoints.save_due(self.step)

    def save(self) -> None:
        """Save unless the newest checkpoint is of this step; it is complete on return."""
        self._checkpoints.save(self.step)

    def finish(self) -> Results:
        """Save if the last step has no checkpoint; return the final step and loss so far.

        Raises: the exception of a signal to end
        """
        self.record.mark(Row.SCRIPT)
        if not self._is_asked:
            self._save_last()
        self._trace.write_if_done(self.step, is_over=True)
        self._ending.__exit__()
        self.record.mark(Row.CHIEF)
        self.record.finish(self._loss)
        return {"global_step": float(self.step), "loss": self._loss}

    def _save_last(self) -> None:
        """Save if the last step has no checkpoint."""
        step, last = self.step, self._options.last
        self.save()
        if last is not None and step < last and self._is_at_end:
            whose = f" of {ended}" if (ended := self._ended()) else ""
            log.warning(
                f"The dataset{whose} ended at step {step} of {last}: call .repeat() in input_fn, "
                "or train fewer steps"
            )

    def _ended(self) -> str | None:
        """Return the streamer whose own data set is exhausted, if streamers have separate data."""
        names = self._machine.feeding.streamers
        return names[self.step % len(names)] if self._options.has_separate_data and names else None

    def _steps_of(self, done: StepsDone, accumulation: AccumulatedBatches | None) -> int:
        """Return how many steps an order has ended; then the loss of the last one is known."""
        if accumulation is None:
            if done.done:
                self._result = self._program.result(done.done - 1, self.step + done.done - 1)
                self._loss = self._result.loss
            return done.done
        ends = accumulation.ends[: done.done] or (True,) * (not accumulation.ends)
        losses = self._program.losses(done.done) or [0.0]
        if accumulation.before == 0:
            self._loss_so_far = 0.0
        for loss, is_last in zip(losses, ends, strict=False):
            self._loss_so_far += loss
            if is_last:
                self._loss, self._loss_so_far = self._loss_so_far, 0.0
        return sum(ends)

    def _report(self) -> None:
        """Show the progress, and write the output that is due after the last step."""
        more = {} if self._scale is None else dict(self._scale.scalars)
        if (rate := self._learning_rate(self.step - 1)) is not None:
            more = {"lr": rate, **more}
        self.record.report(self.step, self._loss, self._result, more, is_last=self.is_over)
        if self.record.is_due(self.step, is_last=self.is_over):
            self._updates.write(self.step, rate, self.record.events)

    def _first_overflow(self, step: int) -> str:
        """Return the first operator of a step with a non-finite result, or else the layer."""
        operator = self._ranges.first_overflow(step) if self._ranges else ""
        return operator or first_overflow(self._machine.plan, self._machine.gradients)

    def _learning_rate(self, step: int) -> float | None:
        """Return the learning rate of a step just computed."""
        rate = self._machine.plan.learning_rate
        if isinstance(rate, StepNumber):
            return self._numbers.of(step, rate.index)
        return None if rate is None else rate.at(step)

    def _why_stopped(self, done: StepsDone) -> str:
        """Return why there is no update after `step`, and where to resume."""
        step = self.step
        what, remedy = f"loss is {done.bad_loss} at step {step + 1}", ""
        if self._ranges and (where := self._ranges.first_overflow(step + 1)):
            what += f", {where}"
        if done.uncounted is not None:
            uncounted = no_counted_labels(self._machine.plan, done.uncounted)
            what, remedy = f"step {step + 1}: {uncounted}", "drop such batches in input_fn"
        kept = self._checkpoints.saving.last_good(step, remedy)
        return f"{what}: training stopped before this update; {kept}"
