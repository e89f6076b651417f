"""The steps of a loaded program, the same in a wafer's process and inside the CPU run.

A step is the plan's visits in their order: of the batch as one, of micro-batches one after the
other, or of minibatches in the order of the schedule. All ways give the loss's sum, and leave the
weights alone when it is not finite.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from time import perf_counter, perf_counter_ns
from typing import Protocol

import numpy as np

from csrun.base.errors import CsrunError
from csrun.base.mode import RunMode
from csrun.executable import Executable, Plan, Runtime, Step, flat_views, wafer_views
from csrun.executable.bind import (
    AnyStore,
    Array,
    Batch,
    Bytes,
    kept_outputs,
    partial_gradients,
    share_of,
)
from csrun.runtime.step.results import ResultSlots
from csrun.runtime.step.source import BatchSource, Taken
from csrun.runtime.step.swarmx import ALONE, Verdict
from csrun.runtime.step.timed import TimedWeights
from csrun.runtime.step.trace import Kind, Recorder
from csrun.runtime.step.weights import Weights
from csrun.runtime.wire.messages import StepsDone

Visit = Callable[[Batch, Step], None]


class Compute(Protocol):
    @property
    def outputs(self) -> Sequence[Sequence[Array]]:
        """The arrays of each minibatch, for each output of the plan."""

    def run(self, batch: Batch, step: Step) -> float:
        """One step forward and backward; the sum of the loss over what counts in the batch."""


def make_compute(
    executable: Executable,
    arena: Bytes,
    store: AnyStore,
    runtime: Runtime,
    weights: Weights,
    verdict: Verdict = ALONE,
) -> Compute:
    """The way of computing that the plan asks for; verdict: on the loss, of all systems."""
    plan = executable.plan
    if plan.at_once > 1:
        return Minibatches(executable, arena, store, runtime, weights)
    kind = WholeBatch if plan.micro_batches == 1 else MicroBatches
    return kind(executable, arena, store, runtime, weights, verdict)


class WholeBatch:
    """The batch as one: a visit after the other."""

    def __init__(
        self,
        executable: Executable,
        arena: Bytes,
        store: AnyStore,
        runtime: Runtime,
        weights: Weights,
        verdict: Verdict,
    ) -> None:
        plan = executable.plan
        program = executable.wafer_program(arena, store, runtime)
        views = wafer_views(plan, arena, store)
        self.outputs: list[list[Array]] = [[views[output.buffer]] for output in plan.outputs]
        self._visits = [
            (number, function, visit.completes)
            for number, (function, visit) in enumerate(
                zip(program.visits, plan.visits, strict=True)
            )
        ]
        self._loss: Array | None = views[plan.loss_buffer] if plan.loss_buffer else None
        self._weights, self._verdict = weights, verdict

    def run(self, batch: Batch, step: Step) -> float:
        for number, visit, completes in self._visits:
            self._weights.enter(number)
            visit(batch, step)
            if completes:
                if not self._verdict.lets_deliver(completes, self._loss_sum):
                    break
                for group in completes:
                    self._weights.deliver(group, step)
        return self._loss_sum

    @property
    def _loss_sum(self) -> float:
        return float(self._loss[0]) if self._loss is not None else 0.0


class MicroBatches:
    """Equal parts of the batch, one after the other, each in the memory of the one before.

    Their gradients are added up in the store, a visit's at a time; a group's are complete, and the
    update follows, in the last one. What the host gets of each is kept until the step is over.
    """

    def __init__(
        self,
        executable: Executable,
        arena: Bytes,
        store: AnyStore,
        runtime: Runtime,
        weights: Weights,
        verdict: Verdict,
    ) -> None:
        plan = executable.plan
        self._weights, self._verdict = weights, verdict
        self._rows = share_of(plan) // plan.micro_batches
        first, later = _first_and_later(executable, arena, store, runtime)
        sums, none = _gradient_sums(plan, arena, store), [()] * len(plan.visits)
        completes = [visit.completes for visit in plan.visits]
        count = plan.micro_batches
        self._parts = [
            list(
                zip(
                    later if number else first,
                    sums if number else none,
                    completes if number == count - 1 else none,
                    strict=True,
                )
            )
            for number in range(count)
        ]
        views = wafer_views(plan, arena, store)
        self._loss = views[plan.loss_buffer] if plan.loss_buffer else None
        self.outputs = kept_outputs(plan, arena)
        self._given = [views[output.buffer] for output in plan.outputs]

    def run(self, batch: Batch, step: Step) -> float:
        """One step; a loss that is not finite ends it before the update."""
        loss_sum, entered, first_sample = 0.0, 0, step.first_sample
        for number, visits in enumerate(self._parts):
            part = _part(batch, number, self._rows)
            step.first_sample = first_sample + number * self._rows
            for visit, sums, completes in visits:
                self._weights.enter(entered)
                entered += 1
                _visit(visit, part, step, sums)
                if completes:
                    if not self._verdict.lets_deliver(completes, loss_sum + self._part_loss):
                        break
                    for group in completes:
                        self._weights.deliver(group, step)
            loss_sum += self._part_loss
            if not self._verdict.lets_deliver((), loss_sum):
                break
            for kept, given in zip(self.outputs, self._given, strict=True):
                kept[number][...] = given
        return loss_sum

    @property
    def _part_loss(self) -> float:
        return float(self._loss[0]) if self._loss is not None else 0.0


class Minibatches:
    """Several equal minibatches, in the order of the plan's schedule; one update a step.

    Replicas of the model are minibatches here: what each does, the one arena does after the other.

    The first minibatch's gradients are written to the store, those of the others beside and added,
    in the order of the minibatches, micro-batch by micro-batch. Weights must be resident.
    """

    def __init__(
        self,
        executable: Executable,
        arena: Bytes,
        store: AnyStore,
        runtime: Runtime,
        weights: Weights,
    ) -> None:
        plan = executable.plan
        self._plan, self._weights = plan, weights
        flights = range(plan.at_once)
        first, later = _first_and_later(executable, arena, store, runtime)
        others = [executable.wafer_program(arena, store, runtime, j).visits for j in flights[1:]]
        views = [wafer_views(plan, arena, store, j) for j in flights]
        self._given: list[list[Array]] = [[v[o.buffer] for v in views] for o in plan.outputs]
        self.outputs = self._given if plan.micro_batches == 1 else kept_outputs(plan, arena)
        self._losses = [v[plan.loss_buffer] for v in views] if plan.loss_buffer else []
        self._programs = [first, *others], [later, *others]
        self._sums = _gradient_sums(plan, arena, store)
        self._rows = plan.batch_size // plan.minibatches

    def run(self, batch: Batch, step: Step) -> float:
        """One step; the update comes after the last minibatch, group by group."""
        loss_sum = 0.0
        for number in range(self._plan.micro_batches):
            loss_sum = self._micro_batch(number, loss_sum, batch, step)
        if isfinite(loss_sum):
            for group in self._plan.deliveries:
                self._weights.deliver(group, step)
        return loss_sum

    def _micro_batch(self, number: int, loss_sum: float, batch: Batch, step: Step) -> float:
        """One of them, and the loss's sum with it."""
        at_once = self._plan.at_once
        programs = self._programs[1 if number else 0]
        for call in self._plan.schedule:
            minibatch = number * at_once + call.minibatch
            step.first_sample = minibatch * self._rows
            part = _part(batch, minibatch, self._rows)
            sums = self._sums[call.visit] if minibatch else ()
            _visit(programs[call.minibatch][call.visit], part, step, sums)
        if self._plan.micro_batches > 1:
            for kept, given in zip(self.outputs, self._given, strict=True):
                for minibatch, array in enumerate(given, number * at_once):
                    kept[minibatch][...] = array
        return sum((float(loss[0]) for loss in self._losses), loss_sum)


def _part(batch: Batch, number: int, rows: int) -> Batch:
    """One of equal parts of a batch."""
    return tuple(array[number * rows : (number + 1) * rows] for array in batch)


def _first_and_later(
    executable: Executable, arena: Bytes, store: AnyStore, runtime: Runtime
) -> tuple[list[Visit], list[Visit]]:
    """The program of the first micro-batch, and that of later ones, if there are any."""
    first = executable.wafer_program(arena, store, runtime).visits
    if executable.plan.micro_batches == 1:
        return first, first
    return first, executable.wafer_program(arena, store, runtime, is_added=True).visits


@dataclass(frozen=True, slots=True)
class _GradientSum:
    """A group's gradients in the store, and where a visit of a later minibatch writes its own.

    is_part: other visits write to the group's gradients, too, so that this one must not find there
    what others have left.
    """

    total: Array
    partial: Array
    is_part: bool

    def prepare(self) -> None:
        """Before the visit."""
        if self.is_part:
            self.partial.fill(0)

    def add(self) -> None:
        """After the visit."""
        np.add(self.total, self.partial, out=self.total)


def _visit(visit: Visit, batch: Batch, step: Step, sums: Sequence[_GradientSum]) -> None:
    """Call a function of the program, and add up the gradients that are to be."""
    for gradients in sums:
        gradients.prepare()
    visit(batch, step)
    for gradients in sums:
        gradients.add()


def _gradient_sums(plan: Plan, arena: Bytes, store: AnyStore) -> list[list[_GradientSum]]:
    """For each visit the gradients that it writes."""
    if plan.store.gradients_offset is None:
        return [[] for _ in plan.visits]
    flat, partial = flat_views(plan, store), partial_gradients(plan, arena)
    visits_of = Counter(group for visit in plan.visits for group in visit.gradients)
    return [
        [
            _GradientSum(flat[f"gradients/{g}"], partial[g], visits_of[g] > 1)
            for g in visit.gradients
        ]
        for visit in plan.visits
    ]


class Engine:
    """Runs steps: takes a batch, computes it, keeps the results.

    The outputs of a training are kept for the last step of an order alone, as the chief shows no
    more, where it does not ask for all.
    """

    def __init__(
        self,
        plan: Plan,
        compute: Compute,
        source: BatchSource,
        weights: TimedWeights,
        results: ResultSlots,
        recorder: Recorder,
        system: int = 0,
        verdict: Verdict = ALONE,
    ) -> None:
        self._first_sample, self._verdict = system * share_of(plan), verdict
        self._recorder = recorder
        self._trains = plan.run_mode is RunMode.TRAIN
        self._plan = plan
        self._compute = compute
        self._source = source
        self._weights = weights
        self._results = results
        self._step = Step()

    @np.errstate(all="ignore")  # the step's loss tells what is not finite
    def run(self, first: int, count: int, keeps_all: bool = False) -> StepsDone:
        """Run up to `count` steps, the first of which is global step `first`.

        keeps_all: keep the outputs of each of them.

        Stops early at the end of the data, and before the update of a step whose loss is not
        finite. On return every update is committed.
        """
        started = perf_counter()
        keeps_all = keeps_all or not self._trains
        step, samples = self._step, 0
        bad_loss: float | None = None
        uncounted: int | None = None
        finished = False
        for done in range(count):
            taken = self._take(first + done)
            if taken is None:
                finished = True
                break
            step.index, step.rows, step.counts = first + done, taken.made.rows, taken.made.counts
            step.first_sample = self._first_sample
            loss_sum = self._run(taken.batch)
            if not self._verdict.is_applied(loss_sum):
                bad_loss = loss_sum
                uncounted = step.counts.index(0) if 0 in step.counts else None
                self._source.release()
                break
            last = done == count - 1
            self._results.record(done, loss_sum, self._counted(), step.rows)
            if last or keeps_all:
                self._results.record_outputs(done, self._compute.outputs)
            self._source.release()
            samples += step.rows
        else:
            done = count
        if finished and done and self._trains:  # the last step's are still there
            self._results.record_outputs(done - 1, self._compute.outputs)
        self._weights.settle()
        seconds = perf_counter() - started
        used = self._source.used()
        waits = self._weights.read()
        return StepsDone(done, samples, seconds, used, finished, bad_loss, uncounted, *waits)

    def _take(self, index: int) -> Taken | None:
        """The batch of step number `index`, whose visits come."""
        recorder = self._recorder
        if not recorder.at(index):
            return self._source.take()
        began = perf_counter_ns()
        taken = self._source.take()
        recorder.add(Kind.INPUT, index, began)
        self._weights.begin()
        return taken

    def _counted(self) -> int:
        """How many the loss's sum is of."""
        step, which = self._step, self._plan.loss_count
        return step.rows if which is None else step.counts[which]

    def _run(self, batch: Batch) -> float:
        """The loss's sum; the mean over no label at all is no number, and nothing to train on.

        In an evaluation it is none of its batches' loss, whatever the model makes of it.

        Raises: CsrunError for an incomplete batch where what fills it up would count
        """
        plan, step = self._plan, self._step
        if plan.counts_padding is not None and step.rows < plan.batch_size:
            raise CsrunError(
                f"step {step.index + 1}: the batch has {step.rows} samples of {plan.batch_size}, "
                f"and {plan.counts_padding} would count the rows that fill it up: give whole "
                "batches, as .batch(..., drop_remainder=True) does"
            )
        if self._trains and 0 in self._step.counts:
            return nan
        loss_sum = self._compute.run(batch, self._step)
        return loss_sum if self._counted() else 0.0
