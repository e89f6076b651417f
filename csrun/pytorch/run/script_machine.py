"""Leased wafer of a script's run: the programs of its variants over one store."""

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch

from csrun.base.errors import CsrunError, UsageError
from csrun.context import Progress
from csrun.estimator.run import EstimatorRun
from csrun.estimator.target import RunSpan, Target, machine_for
from csrun.executable.arrays import Array
from csrun.executable.loss_scale import ScaleState
from csrun.pytorch.lower.to_cirh import output_name
from csrun.pytorch.step.queued_step import QueuedStep
from csrun.pytorch.step.step_outputs import NORM
from csrun.pytorch.step.step_status import StepProgress
from csrun.pytorch.step.variant import StepVariant
from csrun.pytorch.user import SessionLoader
from csrun.records.ledger import Row
from csrun.records.run_estimate import estimated_step_s
from csrun.runtime.chief.machine import Feed, Machine, Program, with_window
from csrun.runtime.chief.training.training import Training
from csrun.runtime.chief.training.training_record import LoopOptions
from csrun.runtime.chief.training.weight_writes import WeightWrites
from csrun.runtime.wire.messages import Results

log = logging.getLogger("csrun")


class ScriptMachine:
    """Leased system with the programs of variants, and the training that uses it.

    owner: variant whose program has defined the store's layout. If it trains, evaluations and other
        trainings use its store; an evaluation's store cannot hold a training.
    window_bytes: gradient window of the store, if larger than the owner's program needs.
    """

    def __init__(
        self,
        run: EstimatorRun,
        target: Target,
        loaders: Sequence[SessionLoader],
        owner: StepVariant,
        step: int,
        window_bytes: int = 0,
    ) -> None:
        self.first_scale: ScaleState | None = None  # of the checkpoint that the run continues
        assert owner.executable is not None, "compiled before"
        self.owner, self._run = owner, run
        self._estimated_step_s = estimated_step_s(owner.executable.directory)
        self._variants: list[StepVariant] = []
        self._training: Training | None = None
        self._open, self._in_block = ExitStack(), ExitStack()
        self._is_in_block, self._begun_at = False, step
        batches = owner.batches
        others = [loader for loader in loaders if loader is not batches.loader]
        run = replace(
            run,
            dataset=batches.loader.dataset_of_batches,
            others=tuple(loader.dataset_of_batches for loader in others),
            data=batches.number,
            is_pushed=batches.is_pushed,
        )
        data_order, first = batches.loader.encode(), batches.upcoming
        last = batches.last_for(owner.rows, first)
        executable = with_window(owner.executable, window_bytes, target.system.sram_bytes)
        span = RunSpan(step, last, data_order, first)
        place = machine_for(run, executable, target, span)
        self.machine: Machine
        self.machine, self._show = self._open.enter_context(place)
        self._take(owner, self.machine)
        batches.fed = self.machine

    def _take(self, variant: StepVariant, program: Program) -> None:
        variant.program, variant.orders = program, None
        if variant not in self._variants:
            self._variants.append(variant)

    def takes(self, variant: StepVariant) -> bool:
        """True if the store has everything that a variant's program needs."""
        window = self.machine.plan.store.gradients_bytes
        return not variant.trains or (self._has_all(variant) and _window_bytes(variant) <= window)

    def _has_all(self, variant: StepVariant) -> bool:
        owner, store = self.owner, self.machine.plan.store  # the owner may be compiled again
        has_state = variant.slots <= self._slots and variant.numbers <= store.numbers
        return owner.trains and variant.stored <= owner.stored and has_state

    @property
    def _slots(self) -> set[str]:
        """Names of the optimizer's state in the store."""
        return {slot.name for slot in self.machine.plan.store.slots}

    def next_owner(self, variant: StepVariant) -> StepVariant:
        """Return the variant that defines the next store, which must also suit this one's program.

        Raises: UsageError if the store would lack something that is trained
        """
        if self._has_all(variant):  # only a larger window is needed
            log.info(
                f"{variant.recording.loss_line}: this step needs {_window_bytes(variant):,} bytes "
                "for gradients: the run gets a larger store, with the weights of this one"
            )
            return self.owner
        owner = self.owner
        has_slots = self._slots <= variant.slots
        lost = owner.updates - (variant.stored if has_slots else variant.updates)
        if owner.trains and lost:
            what = f"{min(lost)} is not trained in this step, which needs state that others lack"
            if new := variant.updates - owner.updates:
                what = (
                    f"{min(new)} is trained in this step, not {min(lost)}, and in earlier ones the "
                    "reverse"
                )
            raise UsageError(
                f"{variant.recording.loss_line}: {what}: train the same parameters in all steps, "
                "or all of them in the first one"
            )
        return variant

    def load(self, variant: StepVariant) -> None:
        """Load a variant's program next to the others.

        A recompiled variant gets its batches where its old program got them, like the others. If
        that is impossible, all get them from the new program. Unused programs are unloaded.
        """
        assert variant.executable is not None, "compiled before"
        batches, whole = variant.batches, variant.batches.whole(variant)
        former = [variant]
        if batches.fed is not None and (batches.is_pushed or not batches.may_feed(variant)):
            former = [variant, *(one for one in self._variants if one.batches is batches)]
            batches.fed = None
        unused = [one.program for one in former if one.program is not None]
        for one in former:
            one.program = None
        if batches.fed is None and whole is not variant:
            self.load(whole)
        if batches.fed is None:
            data, data_order = batches.loader.dataset_of_batches, batches.loader.encode()
            first, last = batches.upcoming, batches.last_for(variant.rows, batches.upcoming)
            feed = Feed(data, batches.number, first, last, data_order)
            feed = replace(feed, is_pushed=batches.is_pushed)
            batches.fed = program = self.machine.load(variant.executable, feed)
        else:
            program = self.machine.load(variant.executable, batches.fed)
        self._take(variant, program)
        self._unload(unused)

    def keep(self, variants: Container[StepVariant]) -> None:
        """Unload the programs of all other variants."""
        self.drop([variant for variant in self._variants if variant not in variants])

    def needs(self, variants: Collection[StepVariant]) -> bool:
        """True if one of the variants has defined the store, or others have the batches of its
        program.
        """
        others = {each.batches for each in self._variants if each not in variants}
        feeding = (each for each in variants if each.program is each.batches.fed is not None)
        return self.owner in variants or any(each.batches in others for each in feeding)

    def drop(self, variants: Collection[StepVariant]) -> None:
        """Unload the programs of variants."""
        self._variants = [variant for variant in self._variants if variant not in variants]
        self._unload([variant.program for variant in variants if variant.program is not None])
        taken = {variant.batches for variant in self._variants if variant.program is not None}
        for variant in variants:
            variant.program = variant.orders = None
            # no other program uses them: the next variant has its own
            if variant.batches not in taken:
                variant.batches.fed = None

    def _unload(self, programs: Iterable[Program]) -> None:
        for program in dict.fromkeys(programs):
            if self._training is not None:
                self._training.forget(program)
            self.machine.unload(program)

    def training(
        self,
        step: int,
        names: Callable[[], Mapping[str, str]],
        compile_s: float,
        taken: Callable[[int, int], None],
        extra_tensors: Callable[[int], Mapping[str, Array]],
        unchecked: Collection[str],
    ) -> Training:
        """Context manager of the training from `step` on, while the Session's block runs.

        names: returns names of weights for the checkpoints. taken: as of `Training`. extra_tensors,
        unchecked: as of `LoopOptions`
        """
        if self._training is None:
            run = self._run
            options = LoopOptions(
                run.model_dir,
                step,
                None,
                run.config.log_steps,
                run.config.save_checkpoints_steps,
                run.config.keep_checkpoint_max,
                {**run.identity(self.machine.plan), **names()},
                compile_s,
                run.settings,
                saves_initial=run.config.save_initial_checkpoint,
                grace_s=run.context.job.grace_s if run.context else None,
                first_scale=self.first_scale,
                estimated_step_s=self._estimated_step_s,
                number_ranges=run.config.number_ranges,
                extra_tensors=extra_tensors,
                unchecked=unchecked,
            )
            run.write_run_command()
            self._training = Training(self.machine, options, None, self._show, taken)
        if not self._is_in_block:
            self._in_block.enter_context(self._training)
            self._is_in_block, self._begun_at = True, self._training.step
        return self._training

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Assign the time of a compile to the row `compile` of the training's ledger.

        No order is in progress: a step whose program is compiled needs all steps before it.
        """
        record = self._training.record if self._training is not None and self._is_in_block else None
        if record is not None:
            record.mark(Row.SCRIPT)
        yield
        if record is not None:
            record.mark(Row.COMPILE)

    def scale_state(self, *, before_last_step: bool = False) -> ScaleState | None:
        """Return the loss scale after the last step of the training, or before it; None before it
        begins.
        """
        training = self._training
        if training is None:
            return None
        return training.scale_before if before_last_step else training.scale_state

    @property
    def input_share(self) -> float:
        """Share of the training's time so far that its steps waited for batches, 0 to 1."""
        return self._training.record.input_share if self._training is not None else 0.0

    @property
    def has_ended(self) -> bool:
        """True if a signal has ended the training, after saving what was possible."""
        return self._training is not None and self._training.has_ended

    def finish_block(self) -> Results:
        """Save at the end of a Session's block; return the training's result."""
        training = self._training
        if training is None or not self._is_in_block or training.step == self._begun_at:
            return {}
        self._show(Progress("training", training.step, training.step, unit="steps"))
        return training.finish()

    def save(self) -> None:
        """Save the training's state if it is not saved."""
        if self._training is not None and self._is_in_block:
            self._training.save()

    def write(self, weights: Mapping[str, Array]) -> bool:
        """Set other weights for the next step; False if that needs another machine."""
        if not self.machine.has_writable_state:
            return False
        if self._training is not None and self._is_in_block:
            self._training.write(weights)
        else:
            WeightWrites(self.machine).write(weights)
        return True

    def leave_block(self) -> None:
        """Restore signal handlers and close files."""
        self._is_in_block = False
        self._in_block.close()

    def close(self, results: Results | None) -> None:
        """Release the system. results: for the other tasks; None if they lose their chief."""
        for variant in self._variants:
            variant.program = variant.orders = variant.batches.fed = None
        with self._open, self._in_block:
            if results is not None:
                self.machine.close(results)


def _window_bytes(variant: StepVariant) -> int:
    """Return the gradient window of a training, including the program that shares its batches."""
    return max(variant.window_bytes, variant.batches.whole(variant).window_bytes)


def push_batch(program: Program, step: QueuedStep) -> None:
    """Send a step's complete batch.

    Raises: UsageError, with the user's line, for a label or an index out of range
    """
    assert step.inputs is not None, "no loader gives them"
    try:
        program.push(tuple(tensor.numpy() for tensor in step.inputs))
    except CsrunError as error:
        said = step.variant.with_lines(str(error))
        raise UsageError(f"step {step.outputs.number + 1}: {said}") from error


def keep_norms(program: Program, steps: Sequence[QueuedStep], norms: Sequence[float]) -> None:
    """Set the gradients' norms before clipping in steps that have run."""
    dtype = getattr(torch, program.plan.precision)
    for step, norm in zip(steps, norms, strict=True):
        step.outputs.outputs[NORM] = torch.tensor(norm, dtype=dtype)


def keep_results(
    variant: StepVariant,
    program: Program,
    steps: Sequence[QueuedStep],
    losses: Sequence[float],
    scales: Sequence[float] = (),
) -> None:
    """Set losses and requested outputs of steps that have run.

    The last step gets all outputs, since the loop may still read them. scales: loss scales, by
    which gradients are divided.
    """
    scaled = set(variant.recording.first_gradients.values()) if scales else set()
    for step, loss in zip(steps, losses, strict=True):
        step.outputs.loss = loss
        step.outputs.status.advance(StepProgress.DONE)
    for slot, step in enumerate(steps):
        is_wanted = not variant.trains or step is steps[-1] or step.outputs.wanted()
        if variant.outputs and is_wanted:
            found = program.result(slot, 0).outputs
            for ref in variant.outputs:
                returned = torch.from_numpy(np.array(found[output_name(ref)]))
                numbers = returned.to(variant.recording.kind(ref).dtype)  # which may be smaller
                place = variant.shape.slot_of(ref)
                step.outputs.outputs[ref] = step.outputs.without_padding(place, numbers)
            for ref in scaled.intersection(variant.outputs):
                step.outputs.outputs[ref] /= scales[slot]
    for step in steps:
        step.outputs.settle()
