"""The chief's loop: drives a machine's steps and writes what a run leaves in model_dir."""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np

from csrun.base.errors import CsrunError
from csrun.context import Progress
from csrun.context.ending import DeferredEnding
from csrun.executable import Plan
from csrun.executable.bind import Array
from csrun.records import checkpoints, events, log_lines, performance
from csrun.runtime.input_log import Feeding, InputLog
from csrun.runtime.step.results import (
    HostCall,
    Mean,
    StepResult,
    Summary,
    result_slots,
    write_summaries,
)
from csrun.runtime.wire.messages import Results, RunSettings, StepsDone

ORDER_S = 0.2  # an order's length: short enough for progress and Ctrl-C, long beside its messages

log = logging.getLogger("csrun")
Show = Callable[[Progress], None]


class Machine(Protocol):
    """A loaded Executable with everything around it that a step needs.

    `state` is what a checkpoint holds, by name; it may be written before the first call of
    `run`, and read between calls.
    `device` is how log lines name it; `feeding` says who makes its batches.
    """

    plan: Plan
    state: dict[str, Array]
    device: str
    programming_time_s: float
    feeding: Feeding

    def run(self, first: int, count: int) -> StepsDone:
        """Run up to `count` ≤ `result_slots(plan)` steps from `first`; committed on return."""

    def result(self, slot: int, step: int) -> StepResult:
        """The result of the last call's step number `slot`."""

    def has_lost_peer(self) -> bool:
        """Whether a part of it is gone, so that there is no next step; may be asked at any time."""

    def close(self, results: Results) -> None:
        """End the run in all its parts, which return `results`."""


@dataclass(frozen=True)
class LoopOptions:
    """What the loop must know of the run.

    first: the global step it starts from; last: the one it ends before, None for the data's end.
    identity: what a checkpoint says of the run that wrote it. apart: each streamer has data of
    its own, whose end is the run's. grace_s: how long the run may go on once it is told to end;
    None for as long as it takes.
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
    apart: bool = False
    grace_s: float | None = None


class Orders:
    """Splits a run into orders: up to the next boundary, and short enough to stay responsive."""

    def __init__(self, machine: Machine, last: int | None) -> None:
        self._machine = machine
        self._last = last
        self._most = result_slots(machine.plan)
        self._seconds_per_step = 0.0

    def give(self, step: int, boundaries: tuple[int, ...]) -> StepsDone:
        """Run from `step` to the nearest multiple of a boundary, or less."""
        count = min([self._most, *(every - step % every for every in boundaries)])
        if self._last is not None:
            count = min(count, self._last - step)
        if self._seconds_per_step:
            count = min(count, max(1, int(ORDER_S / self._seconds_per_step)))
        else:
            count = 1  # nobody knows yet how long a step takes
        started = perf_counter()
        done = self._machine.run(step, count)
        self._seconds_per_step = (perf_counter() - started) / max(done.done, 1)
        return done


class Training:
    """One training run on a loaded machine."""

    def __init__(
        self, machine: Machine, options: LoopOptions, host: HostCall | None, show: Show
    ) -> None:
        self._machine = machine
        self._options = options
        self._host = host
        self._checkpoints = checkpoints.Writer(
            options.model_dir, options.identity, options.checkpoints_kept
        )
        self._show = show
        self._loss = float("nan")
        self._samples = 0
        self._input = InputLog(machine.feeding)
        self._ending = DeferredEnding(machine.has_lost_peer, options.grace_s)
        self._save_s = 0.0  # how long the last checkpoint took

    def run(self) -> Results:
        """Train to the end, and return the final step and loss.

        Told to end by a signal, it saves at the next step boundary, and then lets the signal act.

        Raises: CsrunError when the loss is not finite; the checkpoints written before stay.
        """
        with closing(events.EventWriter(self._options.model_dir)) as self._events:
            return self._run()

    def _run(self) -> Results:
        self._rates = performance.RateTracker()
        self._started = perf_counter()
        step = self._options.first
        if step == 0:
            self._save(step)
        with self._ending:
            step = self._steps(step)
        return self._finish(step)

    def _steps(self, step: int) -> int:
        """From a step that is saved to the last one, or the one at which the run is told to end."""
        options, ending, saved = self._options, self._ending, step
        orders = Orders(self._machine, options.last)
        while options.last is None or step < options.last:
            done = orders.give(step, (options.log_steps, options.checkpoint_steps))
            step += done.done
            self._samples += done.samples
            self._input.add(done)
            if done.done:
                self._report(step, done, final=done.finished or step == options.last)
            if done.bad_loss is not None:
                raise CsrunError(
                    f"loss is {done.bad_loss} at step {step + 1}: training stopped before that "
                    f"step's update; {self._last_good(step)}"
                )
            if step % options.checkpoint_steps == 0 and done.done:
                self._save(step)
                saved = step
            if ending.asked is not None:
                self._save_before_end(step, saved, ending.asked.name)
                return step
            if done.finished:
                break
        if saved != step:
            self._save(step)
        if options.last is not None and step < options.last:
            whose = f" of {ended}" if (ended := self._ended(step)) else ""
            log.warning(
                f"The data set{whose} ended at step {step} of {options.last}: call .repeat() in "
                "input_fn, or train fewer steps"
            )
        return step

    def _ended(self, step: int) -> str | None:
        """The streamer whose own data has no batch for the step, if it has some of its own."""
        names = self._machine.feeding.streamers
        return names[step % len(names)] if self._options.apart and names else None

    def _report(self, step: int, done: StepsDone, final: bool) -> None:
        result = self._machine.result(done.done - 1, step - 1)
        self._loss = result.loss
        self._rates.received(self._samples)
        self._show(Progress("training", step, self._options.last or 0, f"loss {self._loss:.5g}"))
        if step % self._options.log_steps and not final and step != 1:
            return
        rates = self._rates.log()
        scalars = {"loss": self._loss, "local_samples_per_sec": rates.rate}
        scalars["avg_samples_per_sec"] = rates.global_rate
        if (schedule := self._machine.plan.learning_rate) is not None:
            scalars["lr"] = schedule.at(step - 1)
        if self._host:
            self._host.take(result)
            scalars |= self._host.values()
        self._events.scalars(scalars, step)
        write_summaries(self._options.summaries, result, self._events, step)
        log.info(log_lines.step(self._machine.device, step, self._loss, rates))

    def _save(self, step: int) -> None:
        self._require_finite(step)
        log.info(log_lines.saving_checkpoint(step))
        options, started = self._options, perf_counter()
        try:
            self._checkpoints.write(step, self._machine.state)
        except BaseException:
            is_whole = step in checkpoints.kept_steps(options.model_dir)
            log.info(_outcome(step, is_whole))
            if self._ending.is_late:
                log.warning(f"The grace of {options.grace_s:g} s is over (grace_s of the site)")
            raise
        self._save_s = perf_counter() - started

    def _save_before_end(self, step: int, saved: int, signal_name: str) -> None:
        """The checkpoint of a run that is told to end, if the grace is long enough for one."""
        log.info(f"{signal_name}: the training ends after global step {step}")
        left_s = self._ending.left_s
        if saved != step and left_s is not None and self._save_s > left_s:
            log.warning(
                f"No checkpoint at global step {step}: the last one took {self._save_s:.1f} s, and "
                f"{max(0.0, left_s):.1f} s are left of the grace; raise grace_s in the site file, "
                "or save more often"
            )
            return
        if saved != step:
            self._save(step)
        log.info(_outcome(step, is_whole=True))

    def _require_finite(self, step: int) -> None:
        """A state that is not finite must not push a good checkpoint out."""
        for name, array in self._machine.state.items():
            values = np.asarray(array)  # one look at a tensor on another machine
            if values.size and not (isfinite(values.min()) and isfinite(values.max())):
                raise CsrunError(
                    f"tensor {name} is not finite after step {step}: training stopped; "
                    f"{self._last_good(step)}"
                )

    def _last_good(self, step: int) -> str:
        """Where to go on when the weights after `step` are of no use."""
        folder = self._options.model_dir
        kept = checkpoints.kept_steps(folder)
        good = max((at for at in kept if at < step), default=max(kept, default=None))
        remedy = "lower the learning rate"
        if not self._options.settings.check_numerics:
            remedy += ", or run again with runconfig.check_numerics: true, which finds the sample"
        if good is None:
            return f"there is no checkpoint; {remedy}"
        name = checkpoints.name_of(good)
        place = f", checkpoint_path {folder / name}" if good < max(kept) else ""
        return f"the last good checkpoint is {name}{place}; {remedy}"

    def _finish(self, step: int) -> Results:
        seconds = perf_counter() - self._started
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
                input=fed,
            ),
        )
        log.info(log_lines.training_finished(self._samples, seconds))
        if self._samples:
            log.info(log_lines.final_loss(self._loss))
        return {"global_step": float(step), "loss": self._loss}


def _outcome(step: int, is_whole: bool) -> str:
    """What has become of a checkpoint that was being written, or was due, at the end."""
    how = "finished before the end" if is_whole else "discarded"
    return f"Checkpoint at global step {step} {how}"


def evaluate(
    machine: Machine, step: int, batches: int | None, host: HostCall | None, show: Show
) -> Results:
    """Run `batches` batches forward (all when None); the mean loss and host_call's metrics.

    `step` is the global step of the checkpoint being evaluated. The loss is the mean over what
    counts in all batches, NaN when nothing does.
    """
    orders, index, loss = Orders(machine, batches), 0, Mean()
    while batches is None or index < batches:
        done = orders.give(index, ())
        for slot in range(done.done):
            result = machine.result(slot, index + slot)
            loss += Mean(result.loss_sum, result.count)
            if host:
                host.take(result)
        index += done.done
        show(Progress("evaluating", index, batches or 0))
        if done.bad_loss is not None:
            raise CsrunError(f"loss is {done.bad_loss} at batch {index} of the evaluation")
        if done.finished:
            break
    results = {"global_step": float(step), **(host.values() if host else {})}
    if machine.plan.loss_buffer is not None:
        results["loss"] = loss.value
    return results


def predict(
    machine: Machine, batches: int | None, take: Callable[[StepResult], None], show: Show
) -> int:
    """Run `batches` batches forward (all when None), give each result to `take`; the samples."""
    orders, index, samples = Orders(machine, batches), 0, 0
    while batches is None or index < batches:
        done = orders.give(index, ())
        for slot in range(done.done):
            take(machine.result(slot, index + slot))
        index, samples = index + done.done, samples + done.samples
        show(Progress("predicting", index, batches or 0))
        if done.finished:
            break
    return samples
