"""Measurements of a training, and their output: events, log lines, performance.json."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from csrun.base.errors import CsrunError
from csrun.base.run_config import RunSettings
from csrun.context import Progress
from csrun.executable.arrays import Array
from csrun.executable.loss_scale import ScaleState
from csrun.records import events, ledger, log_lines, performance
from csrun.records.ledger import LedgerRow, Row, StepTimes
from csrun.records.run_estimate import EstimateCheck
from csrun.records.update_summaries import NO_SUMMARIES, UpdateSummaries
from csrun.runtime.chief.machine import Machine
from csrun.runtime.chief.training.step_orders import Show
from csrun.runtime.input_log import InputLog
from csrun.runtime.step.results import HostCall, StepResult, Summary, write_summaries
from csrun.runtime.wire.messages import StepsDone

log = logging.getLogger("csrun")

SHOWN_WAIT = 0.05  # of the time so far; a smaller share is not reported


@dataclass(frozen=True)
class LoopOptions:
    """Options of a training loop.

    first, last: initial global step, and the step before which it ends; None: the end of the data.
    identity: the run's identity in checkpoints.
    has_separate_data: each streamer has separate data, whose end ends the run.
    saves_initial: write a checkpoint at step 0.
    grace_s: time to end after a signal, in seconds; None: no limit.
    first_scale: loss scale of the checkpoint that the run continues.
    number_ranges: steps between two reports on ranges.
    of_updates: numbers of updates for the events.
    extra_tensors: returns tensors of a checkpoint after a step that the store does not have.
    unchecked: names of tensors that a checkpoint may have with NaN or infinity.
    saves_due: write checkpoints as they are due; False: the caller calls `Training.save_due`.
    """

    model_dir: Path
    first: int
    last: int | None
    log_steps: int
    checkpoint_steps: int
    checkpoints_kept: int
    identity: Mapping[str, str]
    compile_time_s: float
    settings: RunSettings
    summaries: tuple[Summary, ...] = ()
    has_separate_data: bool = False
    saves_initial: bool = True
    grace_s: float | None = None
    first_scale: ScaleState | None = None
    estimated_step_s: float | None = None
    number_ranges: int | None = None
    of_updates: UpdateSummaries = NO_SUMMARIES
    extra_tensors: Callable[[int], Mapping[str, Array]] = lambda step: {}
    unchecked: Collection[str] = ()
    saves_due: bool = True


class TrainingRecord:
    """Measurements of a training. Its clocks run from `opened` to `stop_clocks`.

    synchronizations, recorded_steps: counts by the line of the script that waited, or that caused
        the recorded steps.
    """

    def __init__(
        self, machine: Machine, options: LoopOptions, host: HostCall | None, show: Show
    ) -> None:
        self._machine, self._options, self._host, self._show = machine, options, host, show
        self._samples = 0
        self._input = InputLog(machine.feeding)
        self._estimate = EstimateCheck(options.estimated_step_s)
        self.synchronizations: Counter[str] = Counter()
        self.recorded_steps: Counter[str] = Counter()
        self._left_s: float | None = None  # time of the last `rest`

    @contextmanager
    def opened(self) -> Iterator[bool]:
        """Open the events, and start the clocks. True on the first call."""
        with closing(events.EventWriter(self._options.model_dir)) as self.events:
            is_first = self._left_s is None
            self._start_clocks()
            yield is_first

    def _start_clocks(self) -> None:
        """Start the clocks."""
        if self._left_s is None:
            self._rates = performance.RateTracker()
            self._ledger = ledger.Ledger()
            self._started = perf_counter()
            return
        rested_s = perf_counter() - self._left_s
        # Rates and times are those of the training, without the script's work between blocks.
        self._started += rested_s
        self._rates.exclude_pause(rested_s)
        self._ledger.exclude_pause(rested_s)

    def stop_clocks(self) -> None:
        """Stop the clocks."""
        self._left_s = perf_counter()

    def mark(self, row: Row) -> None:
        """Assign the time since the last mark to a row of the ledger."""
        self._ledger.mark(row)

    def mark_steps(self, times: StepTimes, rest: Row) -> None:
        """Assign the time since the last mark to steps, up to their time, and the rest to row
        `rest`.
        """
        self._ledger.mark_steps(times, rest)

    def add(self, done: StepsDone, steps: int, waited_s: float) -> None:
        """Count computed steps; waited_s: waits for their input."""
        self._samples += done.samples
        self._input.add(done)
        self._estimate.add(steps, done.seconds - waited_s)

    @property
    def input_share(self) -> float:
        """Share of the time so far that steps waited for batches, 0 to 1."""
        return self._ledger.share(Row.INPUT)

    def summarize(self, name: str, value: float, step: int) -> None:
        """Write a number of a step to the events."""
        self.events.scalars({name: value}, step)

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Return whether a step has a log line."""
        return step % self._options.log_steps == 0 or is_last or step == 1

    def report(
        self,
        step: int,
        loss: float,
        result: StepResult | None,
        more: Mapping[str, float],
        *,
        is_last: bool,
    ) -> None:
        """Show the progress of the training; if due, write the log line and the events.

        more: further numbers of the step for the events.
        """
        self._rates.received(self._samples)
        last = self._options.last or 0
        values = loss, self.input_share, self._input.straggler
        self._show(Progress("training", step, last, self._status(loss), "steps", *values))
        if not self.is_due(step, is_last=is_last):
            return
        rates = self._rates.log()
        scalars = {"loss": loss, "local_samples_per_sec": rates.rate}
        spent = self._ledger.since_report()
        scalars |= {f"seconds/{row}": seconds for row, seconds in spent.items()}
        scalars["avg_samples_per_sec"] = rates.global_rate
        scalars |= more
        if self._host and result:
            self._host.take(result)
            scalars |= self._host.values()
        self.events.scalars(scalars, step)
        if result:
            write_summaries(self._options.summaries, result, self.events, step)
        log.info(log_lines.step(self._machine.device, step, loss, rates))

    def _status(self, loss: float) -> str:
        """Return the loss, and the largest wait if it is significant."""
        wait = self._ledger.largest_wait()
        waiting = (
            f", waiting: {wait.row.replace('_', ' ')} {wait.share:.0%}"
            if wait.share >= SHOWN_WAIT
            else ""
        )
        return f"loss {loss:.5g}{waiting}"

    def finish(self, loss: float) -> None:
        """Write performance.json, and the last lines of the log."""
        seconds = perf_counter() - self._started
        spent = self._ledger.rows()
        try:
            self._keep_performance(seconds, spent)
        except CsrunError as error:  # the weights are saved, which is what matters
            log.warning(f"Training finished, but its performance record was not saved: {error}")
        for line in ledger.lines(spent):
            log.info(line)
        if self.synchronizations:
            log.info(log_lines.synchronizations(self.synchronizations))
        if self.recorded_steps:
            log.info(log_lines.recorded_steps(self.recorded_steps))
        log.info(log_lines.training_finished(self._samples, seconds))
        if self._samples:
            log.info(log_lines.final_loss(loss))

    def _keep_performance(self, seconds: float, spent: tuple[LedgerRow, ...]) -> None:
        plan, fed = self._machine.plan, self._input.finish()
        performance.write(
            self._options.model_dir,
            performance.Performance(
                compile_time=self._options.compile_time_s,
                est_samples_per_sec=plan.estimate.samples_per_sec,
                programming_time=self._machine.programming_time_s,
                samples_per_sec=self._samples / seconds if seconds else 0.0,
                suspected_input_bottleneck=fed.is_bottleneck,
                total_samples=self._samples,
                total_time=seconds,
                step_time=self._estimate.step_s,
                estimated_step_time=self._options.estimated_step_s,
                input=fed,
                ledger=spent,
                num_csx=plan.systems,
                synchronizations=dict(self.synchronizations.most_common()),
                recorded_steps=dict(self.recorded_steps.most_common()),
            ),
        )
