"""Programs of a script's loops, and the machine that has them over one store."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import torch

from csrun.estimator.run import EstimatorRun
from csrun.estimator.start import load_weights, scale_in
from csrun.estimator.target import target_of
from csrun.executable.loss_scale import ScaleState
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.run.compiling import Compiling
from csrun.pytorch.run.orders import Evaluations, TrainingOrders
from csrun.pytorch.run.replay import Replay
from csrun.pytorch.run.script_machine import ScriptMachine
from csrun.pytorch.step.queued_step import QueuedStep, QueuedWork
from csrun.pytorch.step.variant import Batches, KnownBatches, StepVariant
from csrun.pytorch.user import ScriptBatches, SessionLoader
from csrun.pytorch.weights.store_copies import (
    write_weights,
)
from csrun.pytorch.weights.sync import WeightSync
from csrun.runtime.chief.machine import Program
from csrun.runtime.wire.messages import Results
from csrun.runtime.wire.rendezvous import RunFolder, announce_done

log = logging.getLogger("csrun")

Variants = dict[tuple[Any, ...], StepVariant]  # of a Session, by what distinguishes it

CONTINUES = "continues"  # among the results of a run: the chief starts it again


@dataclass
class RunPrograms:
    """Compiled variants of all loops, and the machine that is started for them.

    The first order leases the wafer.

    folder: returns the next rendezvous folder of the job's tasks.
    count: number of steps of all loops.
    updates: number of `optimizer.step()` calls.
    """

    run: EstimatorRun
    folder: Callable[[], RunFolder | None]
    users: WeightSync
    loaders: list[SessionLoader]
    count: int = 0
    updates: int = 0
    _variants: dict[tuple[object, ...], Variants] = field(default_factory=dict)
    _causes: dict[tuple[object, ...], dict[tuple[Any, ...], str]] = field(default_factory=dict)
    synchronizations: Counter[str] = field(default_factory=Counter)  # by the line that waited
    recorded_steps: Counter[str] = field(default_factory=Counter)  # by the reason
    _queued: list[QueuedStep] = field(default_factory=list)
    _machine: ScriptMachine | None = None
    _had_machine: bool = False
    _evaluations: Evaluations = field(default_factory=Evaluations)
    _summaries: list[tuple[str, float]] = field(default_factory=list)  # before the training
    _failure: BaseException | None = None
    _loaded: dict[str, torch.Tensor] = field(default_factory=dict)  # optimizer state of the script

    def __post_init__(self) -> None:
        self._target, self._batches = target_of(self.run), KnownBatches(self.loaders)
        self._compiling = Compiling(self.users, self._target)
        self.replay = Replay(self.run.model_dir, self.users)
        self._orders = TrainingOrders(self.users, self.replay)

    def variants_of(self, session: tuple[object, ...], variants: Variants) -> Variants:
        """Register a Session's variants; return those of the last equal Session."""
        earlier, self._variants[session] = self._variants.get(session, {}), variants
        if self._machine is not None:
            self._machine.keep({*chain(*map(dict.values, (earlier, *self._variants.values())))})
        return earlier

    def recorded_parts(self, session: tuple[object, ...]) -> dict[tuple[Any, ...], str]:
        """Return the recorded parts of a Session's loop, with the reasons."""
        return self._causes.setdefault(session, {})

    def batches_of(self, loader: SessionLoader) -> Batches:
        """Return a loader's batches.

        Raises: UsageError in a job, for a loader that was created after the first Session's block
        """
        return self._batches.of(loader, is_job=self.run.folder is not None)

    @cached_property
    def script_batches(self) -> Batches:
        """Return the batches of steps on tensors that the script creates itself."""
        return Batches(ScriptBatches(), number=0, is_pushed=True)

    def apply_data_changes(self) -> None:
        """Apply the loop's changes of the loaders' data, between two passes.

        Raises: UsageError for a change during a pass, or one that cannot be sent to streamers
        """
        for batches in self._batches.all():
            batches.apply_changes(self.flush, sends=not self._makes_batches)

    @contextmanager
    def pass_open(self) -> Iterator[None]:
        """Context manager of an open pass; after it the loop may change the data of queued
        steps.
        """
        try:
            yield
        finally:
            if self._makes_batches:
                self._keep_batches()

    def _keep_batches(self) -> None:
        """Make the batches of all queued and running steps, if this process makes them."""
        numbers: dict[Batches, list[int]] = {batches: [] for batches in self._batches.all()}
        for step in (*self._orders.steps, *self._queued):
            if step.work is not QueuedWork.UPDATE and step.inputs is None:
                numbers[step.variant.batches].append(step.batch)
        for batches, wanted in numbers.items():
            batches.loader.batches.keep(wanted)

    @property
    def _makes_batches(self) -> bool:
        """True if this process makes the batches of steps, when they run."""
        context = self.run.context
        return self.run.folder is None or context is None or context.rank in context.streamers

    def compile(self, variant: StepVariant) -> None:
        """Compile a variant with the values that it must return, and load it."""
        optimization = self.users.optimization
        if optimization is not None and optimization.adds_numbers(variant.updates):
            self.flush()
        machine = self._machine
        is_known = machine is not None or variant.is_one_of_many
        with nullcontext() if machine is None else machine.compiling():
            self._compiling.compile(self.run, variant, None if is_known else self.replay.found)
            if machine is not None and machine.takes(variant):
                machine.load(variant)

    def drop(self, variants: Collection[StepVariant]) -> bool:
        """Unload the programs of variants that are no longer used; False if others need them."""
        machine = self._machine
        if self._compiling.trained in variants or (machine and machine.needs(variants)):
            return False
        self.flush()
        for variant in variants:
            compiled = variant.batches.variants
            compiled[:] = [each for each in compiled if each is not variant]
        if self._machine is not None:
            self._machine.drop(variants)
        return True

    @property
    def stored_names(self) -> Sequence[str]:
        """Names of weights and buffers, in the order of the first training's program; empty before
        it.
        """
        trained = self._compiling.trained
        return () if trained is None else trained.recording.stored_names

    @property
    def accumulates(self) -> bool:
        """True if a training step may have several batches."""
        return self._compiling.accumulates

    def accumulate(self) -> None:
        """From now on, allow training steps with several batches.

        The trained state moves to another store, which has memory for all gradients.
        """
        if self.accumulates:
            return
        self.flush()
        self._compiling.accumulate()
        self._batches.forget_trainings()
        if self._machine is not None and self._machine.owner.trains:
            self._machine.save()
            self._restart_machine()

    def add_outputs(self, variant: StepVariant, values: Iterable[Ref]) -> None:
        """Make a variant return more values; queued steps of other variants run before."""
        variant.outputs = (*variant.outputs, *values)
        if variant.executable is not None:
            log.info("Recompiling: the loop reads a further output of the step")
        self.compile(variant)

    def _program(self, variant: StepVariant) -> Program:
        if new := [ref for ref in variant.wanted if ref not in variant.outputs]:
            self.add_outputs(variant, new)
        if not self._compiling.is_current(variant):
            self.compile(variant)
        owner = variant
        if self._machine is not None and not self._machine.takes(variant):
            owner = self._machine.next_owner(variant)
            self._machine.save()
            self._restart_machine()
        machine = self._machine or self._start_machine(owner)
        if variant.program is None:
            machine.load(variant)
        assert variant.program is not None, "loaded"
        return variant.program

    def _start_machine(self, variant: StepVariant) -> ScriptMachine:
        """Lease the wafer; a training variant defines its store, if one is known."""
        trained, found = self._compiling.trained, self.replay.find()
        owner = variant if variant.trains else trained or variant
        owner = self._compiling.with_largest_store(owner.batches.whole(owner))
        # It may continue with the shorter last batch of a pass.
        run = replace(self.run, batch_size=owner.batches.whole_rows(owner.batches.upcoming))
        step, window_bytes = self.replay.step, self._compiling.window_bytes
        machine = ScriptMachine(run, self._target, self.loaders, owner, step, window_bytes)
        state, kept = machine.machine.state, found.manifest.tensors if found else {}
        is_part = found is not None and found.of_store < state.keys()
        optimization = self.users.optimization
        # When the store starts again, it may have state of parameters that were frozen before.
        has_added = optimization is not None and optimization.has_added_groups
        may_grow = has_added or self._had_machine
        is_whole = owner.trains and not ((owner.is_one_of_many or may_grow) and is_part)
        plan = machine.machine.plan
        load_weights(run, machine.machine, found if is_whole else None, None, {})
        machine.first_scale = scale_in(found, plan) if found else self._first_scale()
        if not is_whole and found is not None:
            found.take({name: x for name, x in state.items() if name in kept})
            missing = {name: x for name, x in state.items() if name not in kept}
            write_weights(self.users.model, missing if owner.trains else {})
        if self.users.are_current:
            write_weights(self.users.model, state)
        for name in self._loaded.keys() & state.keys():
            state[name][...] = self._loaded.pop(name).numpy()
        self._machine, self._had_machine = machine, True
        return machine

    # The loss scale.

    def _first_scale(self) -> ScaleState | None:
        optimization = self.users.optimization
        scaled = None if optimization is None else optimization.scaled
        return None if scaled is None else scaled.first

    def scale_state(self, *, before_last_step: bool = False) -> ScaleState | None:
        """Return the scale and its counters after the loops' steps so far, or before the last one.

        Raises: ValueLostError in a step of an earlier run, which has not read it
        """
        if self.replay.is_on:
            return self.replay.scale(before_last_step=before_last_step) or self._first_scale()
        self.flush_for_read()
        machine = self._machine
        found = None if machine is None else machine.scale_state(before_last_step=before_last_step)
        if found is None:
            found = (
                self.replay.found_scale(before_last_step=before_last_step) or self._first_scale()
            )
        if found is not None:
            self.replay.keep_scale(found, before_last_step=before_last_step)
        return found

    # The machine.

    def _restart_machine(self) -> None:
        """Close the machine; the next order starts another one."""
        self._close_machine({CONTINUES: 1.0})
        self._announce({CONTINUES: 1.0})
        self.run = replace(self.run, folder=self.folder())

    def _close_machine(self, results: Results | None) -> None:
        machine, self._machine = self._machine, None
        self._orders.forget()
        if machine is not None:
            machine.close(results)

    def _announce(self, results: Results) -> None:
        """Write the results for late tasks."""
        if self.run.folder is not None:
            announce_done(self.run.folder, results)

    # The queue, which `StepQueue` runs.

    def flush(self) -> None:
        """Run all queued steps."""
        raise NotImplementedError

    def flush_for_read(self) -> None:
        """Run all queued steps because the loop reads a value of them."""
        raise NotImplementedError
