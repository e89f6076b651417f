"""Training, from the newest checkpoint or initial weights to the last step."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from csrun.base.errors import CsrunError, PeerLost
from csrun.base.precision_names import CB16
from csrun.context import Terminated
from csrun.estimator.compilation import (
    Compiled,
    check_batch_bytes,
    compile_run,
    run_options,
    trace_run,
)
from csrun.estimator.model_trace import TracedModel
from csrun.estimator.progress import Show
from csrun.estimator.run import EstimatorRun
from csrun.estimator.start import DataSplit, WarmTensors, load_weights
from csrun.estimator.target import RunSpan, Target, machine_for, target_of
from csrun.executable import Executable, Plan, RunMode
from csrun.executable.arrays import Array
from csrun.executable.loss_scale import CB16_UNSCALED
from csrun.executable.shared_store import window_bytes
from csrun.records import checkpoints, log_lines, model_dir
from csrun.records.run_estimate import estimated_step_s
from csrun.runtime.chief.machine import Feed, Machine, with_window
from csrun.runtime.chief.training.step_end import StepEnd
from csrun.runtime.chief.training.training import Training
from csrun.runtime.chief.training.training_record import LoopOptions
from csrun.runtime.step.results import HostCall
from csrun.runtime.wire.messages import Results

log = logging.getLogger("csrun")


@dataclass(frozen=True)
class LoadedTraining:
    """A training on its loaded machine.

    found: checkpoint that it continues, or None.
    """

    training: Training
    machine: Machine
    traced: TracedModel
    found: checkpoints.Checkpoint | None
    show: Show


class TrainingLoop:
    """Loop of a training: all of its steps, up to the last one.

    limit: name of the user's option that sets the last step. saves_due: as in `LoopOptions`.
    """

    limit = "max_steps"
    saves_due = True

    def prepare(self, run: EstimatorRun, target: Target) -> None:
        """Compile other programs of the run, before its systems are leased."""

    def host_call(self, traced: TracedModel) -> HostCall | None:
        """Return the host call of the log lines."""
        return traced.host

    def is_unfinished_at(self, last: checkpoints.Checkpoint) -> bool:
        """Return whether the run stopped between its last step, at `last`, and its end."""
        return False

    def after_steps(self, first: int, count: int) -> None:
        """Process the results of computed steps, before anything is written about them."""

    def extra_tensors(self, step: int) -> Mapping[str, Array]:
        """Tensors of a checkpoint after a step that the store does not have."""
        return {}

    def run(self, loaded: LoadedTraining) -> Results:
        """Train to the end; return the results of the run."""
        return loaded.training.run()


def train(
    run: EstimatorRun,
    steps: int | None,
    max_steps: int | None,
    path: Path | None,
    loop: TrainingLoop | None = None,
) -> Results:
    """Train from the given checkpoint, the newest one, or initial weights."""
    log.info(log_lines.saving_to(run.model_dir))
    with model_dir.opened(run.model_dir), model_dir.locked(run.model_dir, run.holder):
        try:
            return _train(run, steps, max_steps, path, loop or TrainingLoop())
        except (KeyboardInterrupt, Terminated, PeerLost):
            log.info(_resume_text(run.model_dir))
            raise


def train_to_checkpoint(run: EstimatorRun, max_steps: int) -> Results:
    """Train up to the next multiple of save_checkpoints_steps, `max_steps` at most."""
    found = checkpoints.latest(run.model_dir)
    first, every = found.step if found else 0, run.config.save_checkpoints_steps
    due = first - first % every + every
    return train(run, None, min(due, max_steps), None)


def _train(
    run: EstimatorRun,
    steps: int | None,
    max_steps: int | None,
    path: Path | None,
    loop: TrainingLoop,
) -> Results:
    found = checkpoints.open_checkpoint(path) if path else checkpoints.latest(run.model_dir)
    first = found.step if found else 0
    limits = (first + steps if steps is not None else None, max_steps)
    last = min((limit for limit in limits if limit is not None), default=None)
    target = target_of(run)
    if found is None or last is None or first < last or loop.is_unfinished_at(found):
        return _train_from(run, target, found, last, loop)
    _require_same_model(run, target, found)
    log.info(_nothing_to_train(run.model_dir, first, last, loop.limit))
    return {"global_step": float(first)}


def _require_same_model(run: EstimatorRun, target: Target, found: checkpoints.Checkpoint) -> None:
    """Check that a checkpoint is of the run's model, by tracing it.

    Raises: UsageError if it is of another model, although nothing is left to train
    """
    check_batch_bytes(run.dataset)
    traced = trace_run(run, run_options(run, RunMode.TRAIN, target))
    found.require_same(traced.weights())


def _train_from(
    run: EstimatorRun,
    target: Target,
    found: checkpoints.Checkpoint | None,
    last: int | None,
    loop: TrainingLoop,
) -> Results:
    """Compile, load and train, up to step `last`; without a checkpoint from initial weights."""
    first = found.step if found else 0
    split = DataSplit.of(run.dataset)
    if found is not None and not found.manifest.is_converted:
        split.require_same(found, target)
    compiled = compile_run(run, RunMode.TRAIN, target, last)
    traced = compiled.traced
    _note_unscaled(compiled.executable.plan)
    loop.prepare(run, target)
    start = run.config.warm_start if found is None else None
    warm = WarmTensors(start, compiled.executable.plan) if start else None
    executable = _with_room(compiled, target)
    with machine_for(run, executable, target, RunSpan(first, last)) as (machine, show):
        scale = load_weights(run, machine, found, warm, traced.first_values, traced.changed_values)
        options = replace(
            _loop_options(run, compiled, split, loop, machine.plan),
            first=first,
            last=last,
            first_scale=scale,
        )
        run.write_run_command()
        end = _loaded_update(machine, compiled.update, run)
        training = Training(machine, options, loop.host_call(traced), show, loop.after_steps, end)
        results = loop.run(LoadedTraining(training, machine, traced, found, show))
        machine.close(results)
    return results


def _loop_options(
    run: EstimatorRun, compiled: Compiled, split: DataSplit, loop: TrainingLoop, plan: Plan
) -> LoopOptions:
    """Return the options of a training from initial weights to the end of the data.

    plan: of the loaded program.
    """
    config, traced = run.config, compiled.traced
    identity = {
        **run.identity(plan, traced.optimizer_folders),
        **split.identity(),
        **traced.identity,
    }
    return LoopOptions(
        run.model_dir,
        first=0,
        last=None,
        log_steps=config.log_steps,
        checkpoint_steps=config.save_checkpoints_steps,
        checkpoints_kept=config.keep_checkpoint_max,
        identity=identity,
        compile_time_s=compiled.seconds,
        settings=run.settings,
        summaries=traced.summaries,
        has_separate_data=split.is_split,
        saves_initial=config.save_initial_checkpoint,
        grace_s=run.context.job.grace_s if run.context else None,
        estimated_step_s=estimated_step_s(compiled.executable.directory),
        number_ranges=config.number_ranges,
        of_updates=traced.of_updates,
        extra_tensors=loop.extra_tensors,
        saves_due=loop.saves_due,
    )


def _with_room(compiled: Compiled, target: Target) -> Executable:
    """Return the Executable of a training, with space for the results of its separate update."""
    if compiled.update is None:
        return compiled.executable
    nbytes = window_bytes(compiled.update.plan)
    return with_window(compiled.executable, nbytes, target.system.sram_bytes)


def _loaded_update(
    machine: Machine, update: Executable | None, run: EstimatorRun
) -> StepEnd | None:
    """Load the update that ends each step; of several systems' values, those of the first one
    count.
    """
    if update is None:
        return None
    program = machine.load(update, Feed(run.dataset, is_pushed=True))
    writes = np.zeros(update.plan.batch_size, np.float32)
    writes[0] = 1
    return StepEnd(program, (writes,))


def _note_unscaled(plan: Plan) -> None:
    """Log that CB16 is trained without dynamic loss scaling."""
    scaling = plan.loss_scaling
    is_cb16 = plan.storage is not None and plan.storage.name == CB16
    if is_cb16 and (scaling is None or not scaling.is_dynamic):
        log.info(f"{CB16_UNSCALED} loss_scaling_factor: dynamic")


def _resume_text(folder: Path) -> str:
    newest = None
    with suppress(CsrunError):  # a damaged checkpoint is reported by the next run
        newest = checkpoints.latest(folder)
    if newest is None:
        return f"Training interrupted: {folder} has no checkpoint, the next run starts from step 0"
    return f"Training interrupted: the next run in {folder} resumes from {newest.name}"


def _nothing_to_train(folder: Path, step: int, last: int, limit: str) -> str:
    return (
        f"{folder} is at global step {step} of {last}: nothing to train; "
        f"raise {limit} or choose another model_dir"
    )
