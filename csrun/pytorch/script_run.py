"""The chief's part of a Session: programs over one store, their steps in the loop's order."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import torch

from csrun.base.errors import CsrunError, UsageError
from csrun.estimator.compilation import compile_options, compile_traced
from csrun.estimator.place import find_target, machine_for
from csrun.estimator.progress import Show, compile_display
from csrun.estimator.run import Run
from csrun.estimator.start import load_weights
from csrun.executable import MOST_STEPS
from csrun.pytorch.capture import Ref, user_line
from csrun.pytorch.given_back import GivenBack
from csrun.pytorch.importing import output_name
from csrun.pytorch.kept_values import KeptValues
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.parts import Batches, Part, Queued
from csrun.pytorch.stored import StoredWeights, names_of, write_weights
from csrun.pytorch.tokens import StepValues
from csrun.pytorch.user import Loader
from csrun.records import checkpoints, log_lines, model_dir
from csrun.records.checkpoints import Checkpoint
from csrun.runtime.roles.loop import Orders
from csrun.runtime.roles.machine import Feed, Machine, Program
from csrun.runtime.roles.training import LoopOptions, Training
from csrun.runtime.wire.messages import Results
from csrun.runtime.wire.rendezvous import announce_done, announce_failed

log = logging.getLogger("csrun")


@dataclass
class ScriptRun:
    """Steps of recorded loops. The wafer is leased by the first order, and model_dir held at once.

    optimization: None without a training. resumed: the steps that an earlier run has taken.
    """

    run: Run
    model: torch.nn.Module
    optimization: Optimization | None
    loaders: list[Loader]
    resumed: int = 0
    _found: Checkpoint | None = None
    _batches: dict[Loader, Batches] = field(default_factory=dict)
    _queued: list[Queued] = field(default_factory=list)
    _made: int = 0
    _kept: KeptValues | None = None
    _machine: Machine | None = None
    _show: Show | None = None
    _training: Training | None = None
    _running: Program | None = None
    _evaluated: int = 0
    _compile_s: float = 0.0
    _open: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        run = self.run
        self.users = GivenBack(self.model, self.optimization)
        self._target = find_target(run.context, run.config.cs_ip)
        self._open.enter_context(model_dir.opened(run.model_dir))
        if self.optimization is None:
            return
        log.info(log_lines.saving_to(run.model_dir))
        self._open.enter_context(model_dir.locked(run.model_dir, run.holder))
        self._found = checkpoints.latest(run.model_dir)
        if self._found is not None:
            self.resumed = self._found.step
            log.info(
                f"The loop runs from its start; its first {self.resumed} steps are taken already"
            )
        else:
            self.optimization.require_new()
        self._kept = KeptValues(run.model_dir, self.resumed)
        self._open.callback(self._kept.close)

    @property
    def is_replayed(self) -> bool:
        """Whether the loop is where an earlier run has been: nothing of it runs again."""
        return self._made < self.resumed

    def kept(self, values: StepValues, ref: Ref) -> torch.Tensor | None:
        """What an earlier run has read of a step, if it has and there was one.

        Raises: UsageError for what it has not read, of a step that is not taken again
        """
        if self._kept is None or self._made > self.resumed:
            return None
        found = self._kept.value(values.number, ref.number)
        if found is None and (self.is_replayed or (values.is_over and not self._training)):
            raise UsageError(
                f"{user_line()}: step {values.number + 1} was taken by an earlier run, which did "
                "not read this value: begin in a new model_dir, or read what that one read"
            )
        return found

    def keep(self, values: StepValues, ref: Ref, tensor: torch.Tensor) -> None:
        """Keep a value that the loop reads."""
        if self._kept is not None:
            self._kept.add(values.number, ref.number, self._made, tensor)

    def batches_of(self, loader: Loader) -> Batches:
        """A loader's batches.

        Raises: UsageError in a job, for one that the other tasks have not made before the Session
        """
        if loader not in self._batches:
            if loader not in self.loaders:
                self._require_alone()
                self.loaders.append(loader)
            self._batches[loader] = Batches(loader, self.loaders.index(loader))
        return self._batches[loader]

    def _require_alone(self) -> None:
        if self.run.folder is not None:
            raise UsageError(
                f"{user_line()}: call cbtorch.dataloader(...) before the Session's block: the "
                "streamers, which make its batches, do not run the block"
            )

    @property
    def step(self) -> int:
        """The global step that comes next."""
        return self._training.step if self._training else self.resumed

    def compile(self, part: Part) -> None:
        """Compile a part with the values that are asked of it; load it where others run."""
        run = self.run
        traced = part.traced(self.optimization)
        options = compile_options(run.config, part.run_mode, self._target)
        if self._found is not None and part.trains and self._machine is None:
            self._found.require_same(traced.weights())
        with compile_display(run.context) as begin:
            compiled = compile_traced(traced, run.model_dir, options, begin)
        self._compile_s += compiled.seconds
        part.executable = compiled.executable
        if part.trains:
            self.users.learn(part.recording)
        if self._machine is not None:
            self._load(part)

    def _load(self, part: Part) -> None:
        """Have a program beside those that run."""
        part.orders = None
        assert self._machine is not None, "a machine is there"
        assert part.executable is not None, "compiled before"
        owner = part.batches.owner
        if owner is not None and owner.program is not None:
            part.program = self._machine.load(part.executable, owner.program)
        else:
            batches, part.batches.owner = part.batches, part
            data = batches.loader.dataset_of_batches
            told = batches.loader.orders.told()
            feed = Feed(data, batches.number, batches.next or 0, batches.last, told)
            part.program = self._machine.load(part.executable, feed)

    def give(self, part: Part, values: Iterable[Ref]) -> None:
        """Have a part give more values from here on; what is queued of others runs before."""
        part.outputs = (*part.outputs, *values)
        if part.executable is not None:
            log.info("Compiling once more: the loop reads a value that it did not read before")
        self.compile(part)

    def queue(self, step: Queued) -> None:
        """A step is made; it runs when there are many, or when a value of it is read.

        One that an earlier run has taken has that one's loss.
        """
        values, trains = step.values, step.part.trains
        is_replayed = self.is_replayed
        self._made += trains
        if is_replayed:
            values.is_over = True
            if self._kept is not None and trains:
                values.loss = self._kept.loss(self._made - 1)
            return
        self._queued.append(step)
        if len(self._queued) >= MOST_STEPS:
            self.flush()

    def requeue(self, step: Queued) -> None:
        """Put a step back that was taken back."""
        self._queued.append(step)

    def unqueue(self, values: StepValues) -> Queued | None:
        """Take a step back, if it is the last one."""
        if self._queued and self._queued[-1].values is values:
            return self._queued.pop()
        return None

    def flush(self) -> None:
        """Run what is queued, in order."""
        queued, self._queued = self._queued, []
        for part, steps in groupby(queued, key=lambda step: step.part):
            self._run(part, list(steps))

    def _run(self, part: Part, steps: list[Queued]) -> None:
        """Run steps of one part, cut where the batches do not follow each other."""
        while steps:
            first, batches = steps[0].batch, part.batches
            count = next((i for i, s in enumerate(steps) if s.batch != first + i), len(steps))
            is_next, has_begun = first == batches.next, batches.owner is not None
            batches.next = first
            program = self._program(part)
            if has_begun and not is_next and batches.owner and batches.owner.program:
                told = batches.loader.orders.told()
                batches.owner.program.begin(first, batches.last, told)
            (self._train if part.trains else self._evaluate)(part, program, steps[:count])
            batches.next = first + count
            steps = steps[count:]

    def _program(self, part: Part) -> Program:
        if new := [ref for ref in part.wanted if ref not in part.outputs]:
            self.give(part, new)
        if part.executable is None:
            self.compile(part)
        if self._machine is None:
            self._begin(part)
        if part.program is None:
            self._load(part)
        assert part.program is not None, "loaded"
        return part.program

    def _train(self, part: Part, program: Program, steps: list[Queued]) -> None:
        training, at = self._trainer(), 0
        training.use(program)
        self._running = program
        while at < len(steps):
            done = training.advance([step.numbers for step in steps[at:]])
            if not done.done:
                raise CsrunError(f"the data ended at step {training.step}, the loop goes on")
            self._keep(part, program, steps[at : at + done.done], only_last=True)
            at += done.done

    def _evaluate(self, part: Part, program: Program, steps: list[Queued]) -> None:
        orders, at = part.orders or Orders(program, None), 0
        part.orders = orders
        while at < len(steps):
            done = orders.give(self._evaluated, (), len(steps) - at)
            if not done.done:
                raise CsrunError(f"the data ended at batch {steps[at].batch}, the loop goes on")
            self._keep(part, program, steps[at : at + done.done], only_last=False)
            at += done.done
            self._evaluated += done.done

    def _keep(self, part: Part, program: Program, steps: list[Queued], only_last: bool) -> None:
        """Give steps that were run what came of them."""
        for step, loss in zip(steps, program.losses(len(steps)), strict=True):
            step.values.loss, step.values.is_over = loss, True
        for slot, step in enumerate(steps):
            if part.outputs and (slot == len(steps) - 1 or not only_last):
                found = program.result(slot, 0).outputs
                step.values.outputs = {
                    ref: torch.from_numpy(np.array(found[output_name(ref)])) for ref in part.outputs
                }

    def _begin(self, part: Part) -> None:
        """Lease the wafer, with the part's program as the first one."""
        run = self.run
        assert part.executable is not None, "compiled before"
        batches, step = part.batches, self.resumed if part.trains else 0
        others = [loader for loader in self.loaders if loader is not batches.loader]
        run = replace(
            run,
            dataset=batches.loader.dataset_of_batches,
            others=tuple(loader.dataset_of_batches for loader in others),
            data=batches.number,
        )
        told = batches.loader.orders.told()
        machine, self._show = self._open.enter_context(
            machine_for(
                run, part.executable, self._target, step, batches.last, told, batches.next or 0
            )
        )
        if part.trains or self._found is None:
            load_weights(run, machine, self._found, None)
        if self._found is None:
            write_weights(self.model, machine.state)
        self._machine = part.program = machine
        batches.owner = part

    def _trainer(self) -> Training:
        if self._training is None:
            run, machine, show = self.run, self._machine, self._show
            assert machine is not None, "begun"
            assert show is not None, "begun"
            options = LoopOptions(
                run.model_dir,
                self.resumed,
                None,
                run.config.log_steps,
                run.config.save_checkpoints_steps,
                run.config.keep_checkpoint_max,
                {**run.identity(machine.plan), **names_of(self.model)},
                self._compile_s,
                run.settings,
                grace_s=run.context.job.grace_s if run.context else None,
            )
            training = Training(machine, options, None, show, self._keep_losses)
            self._training = self._open.enter_context(training)
        return self._training

    def _keep_losses(self, first: int, count: int) -> None:
        if self._kept is not None and self._running is not None:
            self._kept.add_losses(first, self._running.losses(count))

    def summarize(self, name: str, value: float) -> None:
        """Write a number into the events, at the training's step; once, if the step is replayed.

        Raises: UsageError where nothing is trained
        """
        if self.optimization is None:
            raise UsageError(
                f"{user_line()}: cbtorch.summarize_scalar writes at a training's step, and this "
                'Session has none: print the value, or use mode="train"'
            )
        if self.is_replayed or self._machine is None:
            return
        self._trainer().summarize(name, value)

    def finish(self) -> None:
        """Run what is queued, save, and give the user's objects what was trained."""
        self.flush()
        results: Results = {}
        if self._machine is not None:
            results = self._training.finish() if self._training else {}
            self.give_back()
            if self._training is not None:
                self.users.end(self.saved)
            self._machine.close(results)
        elif self._found is not None:  # an earlier run has taken all steps of the loop
            self.users.found(self._found)
            self.users.end(self.saved)
        if self.run.folder is not None:
            announce_done(self.run.folder, results)

    def fail(self, error: Exception) -> None:
        """The loop has raised: nobody is to wait for it."""
        if self.run.folder is not None:
            announce_failed(self.run.folder, error)

    def read_weights(self) -> None:
        """Have the user's own Parameters be those of the store."""
        if self._machine is not None and self._training is not None:
            self.users.weights(self._machine.state)

    def weights_of_store(self) -> Mapping[str, torch.Tensor]:
        """Weights of a model that has no memory, by their names; each is read when it is asked for.

        None for a model that has some, or before the store has them.
        """
        if self._machine is None or self._training is None or not self.users.is_on_meta:
            return {}
        return StoredWeights(self._machine.state)

    def saved(self) -> Checkpoint:
        """A checkpoint of what the store holds, written now if the newest is of an earlier step.

        Raises: UsageError before the first step of a run that begins
        """
        if self._training is not None:
            self._training.save()
        newest = checkpoints.latest(self.run.model_dir)
        if newest is None:
            raise UsageError(
                f"{user_line()}: weights that cbtorch.meta_init() has made have no memory before "
                "the first step: read them behind it"
            )
        return newest

    def give_back(self) -> None:
        """Give the user's own Parameter objects and optimizer what the store holds.

        Raises: UsageError in steps that an earlier run has taken
        """
        if self.is_replayed:
            raise UsageError(
                f"{user_line()}: the loop is in step {self._made + 1}, which an earlier run has "
                "taken and whose weights are gone: skip it where the Session's is_replayed is true"
            )
        if self._machine is not None and self._training is not None:
            self.users.all(self._machine.state, self._training.step)
        elif self._found is not None:
            self.users.found(self._found)

    def close(self) -> None:
        """Let go of machine and model_dir."""
        self._open.close()
