"""Queue of steps of a script's loops, which a machine runs in orders."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import torch

from csrun.executable import MOST_STEPS
from csrun.pytorch.errors import user_line
from csrun.pytorch.run.orders import EARLIEST
from csrun.pytorch.run.run_programs import RunPrograms
from csrun.pytorch.run.script_machine import push_batch
from csrun.pytorch.step.queued_step import QueuedStep, in_a_row
from csrun.pytorch.step.variant import StepVariant
from csrun.pytorch.weights.store_copies import (
    names_of,
)
from csrun.records.torch_names import stored_name
from csrun.runtime.chief.training.training import Training

log = logging.getLogger("csrun")


@dataclass(frozen=True)
class RunTimes:
    """Times of a run so far. estimate: samples per second, by the compiler.

    input_share: share of the time that steps waited for batches, 0 to 1.
    """

    compile_s: float
    programming_s: float
    estimate: float
    input_share: float


@dataclass
class StepQueue(RunPrograms):
    """Queue of steps, in the loops' order, which the machine runs in orders."""

    def queue(self, step: QueuedStep) -> None:
        """Queue a step. It runs when the queue is long, or when a value of it is read.

        A step that an earlier run has computed gets its loss from the value log.
        """
        if self.replay.takes(step):
            step.variant.batches.next = step.batch + 1
            return
        self._queued.append(step)
        if step.variant.evaluated_buffers:
            self._write_buffers(step)
            return
        count = len(self._queued)
        is_full = count >= MOST_STEPS
        if count % EARLIEST == 1 or is_full:  # checking costs half as much as a step
            self._order_early(is_full=is_full)
            if len(self._queued) >= MOST_STEPS:
                self.flush()

    def _write_buffers(self, step: QueuedStep) -> None:
        """Run a step of an evaluation, and continue from the buffers that it has written."""
        self.flush()
        written, outputs = step.variant.evaluated_buffers, step.outputs.outputs
        found = {name: outputs[ref] for name, ref in written.items()}
        self.users.keep_weights()
        self.users.set_tensors(found)  # the host computes with them
        self._write({stored_name(name): value for name, value in found.items()})

    def _write(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Continue from other weights, by their names in the store. No step may be queued."""
        if self._machine is not None:
            if self._machine.write({name: x.numpy() for name, x in weights.items()}):
                return
            self._machine.save()
            self._restart_machine()
        self._loaded |= weights

    def _order_early(self, *, is_full: bool) -> None:
        """Order steps while the loop continues. is_full: even if that has to wait."""
        orders = self._orders
        if orders.is_in_progress:
            if not (orders.is_done or is_full):
                return
        elif orders.ready(self._queued) < EARLIEST:
            return
        with self._failing():
            self._finish_order()
            if (count := orders.ready(self._queued)) >= EARLIEST:
                steps, self._queued = self._queued[:count], self._queued[count:]
                orders.begin(self._trainer(), steps)

    def _finish_order(self) -> None:
        """Wait for the running steps; those that were not computed return to the queue."""
        if self._orders.is_in_progress:
            self._queued[:0] = self._orders.finish(self._trainer())

    def flush_for_read(self) -> None:
        """Run the queue, because the script's current line needs a value of it."""
        if self._queued or self._orders.is_in_progress:
            self.synchronizations[user_line()] += 1
        self.flush()

    def flush(self) -> None:
        """Run the queue, in order.

        Raises: the error of an earlier flush, if the loop has caught it: its steps are lost
        """
        if isinstance(self._failure, Exception):
            raise self._failure
        with self._failing():
            self._finish_order()
            queued, self._queued = self._queued, []
            for (variant, is_update), each in groupby(queued, attrgetter("program_key")):
                (self._update if is_update else self._run)(variant, list(each))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Remember an error and drop the queue."""
        try:
            yield
        except BaseException as error:
            self._failure, self._queued = error, []
            raise

    def _run(self, variant: StepVariant, steps: list[QueuedStep]) -> None:
        """Run steps of one variant, in orders of consecutive batches."""
        while steps:
            first, batches = steps[0].batch, variant.batches
            count = in_a_row(steps)
            is_next = first == batches.next
            batches.next = first
            has_begun = batches.fed is not None
            for step in steps[:count]:
                variant.wanted.update(wanted := step.outputs.wanted())
                if not all(ref in variant.outputs for ref in wanted):  # it is compiled again
                    variant.wanted.update(step.outputs.small_referenced_values())
            program = self._program(variant)
            if steps[0].inputs is not None:
                push_batch(program, steps[0])
            elif has_begun and not is_next and batches.fed is not None:
                last = batches.last_for(batches.fed.plan.inputs[0].shape[0], first)
                batches.fed.begin(first, last, batches.loader.encode())
            if variant.trains:
                self._orders.run(self._trainer(), variant, program, steps[:count], self.accumulates)
            else:
                self._evaluations.run(variant, program, steps[:count])
            batches.next = first + count
            steps = steps[count:]

    def _update(self, variant: StepVariant, steps: list[QueuedStep]) -> None:
        """Apply the updates of steps whose batches have all run."""
        for step in steps:
            self._orders.update(self._trainer(), variant, self._program(variant), step)

    def _trainer(self) -> Training:
        machine = self._machine
        assert machine is not None, "begun"
        log_finished = self._orders.log_finished
        training = machine.training(
            self.replay.step,
            lambda: {**names_of(self.users.model), **self.replay.identity},
            self._compiling.seconds,
            log_finished,
            self.users.integers.after,
            self.users.infinite_buffers,
        )
        training.record.synchronizations = self.synchronizations
        training.record.recorded_steps = self.recorded_steps
        for name, value in self._summaries:
            training.record.summarize(name, value, training.step)
        self._summaries = []
        return training

    def summarize(self, name: str, value: float) -> None:
        """Write a number to the events at the training's step, unless it is replayed."""
        if self.replay.is_on:
            return
        if self._machine is None or not self._machine.owner.trains:
            self._summaries.append((name, value))  # the training begins after it
            return
        training = self._trainer()
        training.record.summarize(name, value, training.step)

    def times(self) -> RunTimes:
        """Return the run's times so far."""
        machine, compile_s = self._machine, self._compiling.seconds
        if machine is None:
            return RunTimes(compile_s, 0.0, 0.0, 0.0)
        estimate = machine.machine.plan.estimate.samples_per_sec
        programming_s = machine.machine.programming_time_s
        return RunTimes(compile_s, programming_s, estimate, machine.input_share)
