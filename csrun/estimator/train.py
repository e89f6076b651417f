"""Training, from the newest checkpoint or initial weights to the last step."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
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
from csrun.estimator.target import Target, machine_for, target_of
from csrun.executable import Executable, Plan, RunMode
from csrun.executable.arrays import Array
from csrun.executable.shared_store import window_bytes
from csrun.records import checkpoints, log_lines, model_dir
from csrun.records.run_estimate import estimated_step_s
from csrun.runtime.chief.machine import Feed, Machine, with_window
from csrun.runtime.chief.step_end import StepEnd
from csrun.runtime.chief.training import Training
from csrun.runtime.chief.training_record import LoopOptions
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

    def has_work_after(self, found: checkpoints.Checkpoint) -> bool:
        """Return whether something is left to do after the last step, which a checkpoint is of."""
        return False

    def taken(self, first: int, count: int) -> None:
        """Take these steps, before anything is written about them."""

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
            log.info(_where_to_resume(run.model_dir))
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
    is_left = found is not None and loop.has_work_after(found)
    if found is not None and last is not None and first >= last and not is_left:
        # traced even so: a checkpoint of another model is an error, not a finished training
        check_batch_bytes(run.dataset)
        traced = trace_run(run, run_options(run, RunMode.TRAIN, target))
        found.require_same(traced.weights())
        log.info(_nothing_to_train(run.model_dir, first, last, loop.limit))
        return {"global_step": float(first)}
    split = DataSplit.of(run.dataset)
    if found is not None and not found.manifest.is_converted:
        split.require_same(found, target)
    compiled = compile_run(run, RunMode.TRAIN, target, last)
    _note_unscaled(compiled.executable.plan)
    loop.prepare(run, target)
    start = run.config.warm_start if found is None else None
    warm = WarmTensors(start, compiled.executable.plan) if start else None
    folders = compiled.traced.optimizer_folders
    executable = _with_room(compiled, target)
    with machine_for(run, executable, target, first, last) as (machine, show):
        values = compiled.traced.first_values, compiled.traced.changed_values
        scale = load_weights(run, machine, found, warm, *values)
        options = LoopOptions(
            run.model_dir,
            first,
            last,
            run.config.log_steps,
            run.config.save_checkpoints_steps,
            run.config.keep_checkpoint_max,
            {
                **run.identity(machine.plan, folders),
                **split.identity(),
                **compiled.traced.identity,
            },
            compiled.seconds,
            run.settings,
            compiled.traced.summaries,
            apart=split.is_split,
            saves_initial=run.config.save_initial_checkpoint,
            grace_s=run.context.job.grace_s if run.context else None,
            first_scale=scale,
            estimated_step_s=estimated_step_s(compiled.executable.directory),
            number_ranges=run.config.number_ranges,
            of_updates=compiled.traced.of_updates,
            extra_tensors=loop.extra_tensors,
            saves_due=loop.saves_due,
        )
        run.write_run_command()
        end = _loaded_update(machine, compiled.update, run)
        host = loop.host_call(compiled.traced)
        training = Training(machine, options, host, show, loop.taken, end)
        results = loop.run(LoadedTraining(training, machine, compiled.traced, found, show))
        machine.close(results)
    return results


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
        log.info(
            "CB16 without dynamic loss scaling: later versions of the original require "
            "loss_scaling_factor: dynamic"
        )


def _where_to_resume(folder: Path) -> str:
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
