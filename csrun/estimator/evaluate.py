"""Evaluation and prediction with a trained checkpoint."""

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from csrun.base.errors import CsrunError, UsageError
from csrun.estimator.compilation import compile_run
from csrun.estimator.run import EstimatorRun
from csrun.estimator.target import RunSpan, machine_for, target_of
from csrun.executable import RunMode
from csrun.records import checkpoints, events, log_lines, model_dir
from csrun.runtime.chief.machine import Machine
from csrun.runtime.chief.training import step_orders
from csrun.runtime.step.results import StepResult
from csrun.runtime.wire.messages import Results

log = logging.getLogger("csrun")


def evaluate(run: EstimatorRun, batches: int | None, path: Path | None) -> Results:
    """Evaluate the given checkpoint, or the newest one at the time a system is free."""
    _trained(run, path)
    target = target_of(run)
    log.info(log_lines.saving_to(run.model_dir))
    with model_dir.opened(run.model_dir):
        compiled = compile_run(run, RunMode.EVAL, target, batches)
    with machine_for(run, compiled.executable, target, RunSpan(0, batches)) as (machine, show):
        found = _restore(run, machine, path)
        traced = compiled.traced
        results = step_orders.evaluate(
            machine, found.step, batches, traced.host, show, traced.losses
        )
        machine.close(results)
    log.info(log_lines.evaluated(results))
    write_events(run.model_dir, results)
    return results


def predict(
    run: EstimatorRun, batches: int | None, path: Path | None, take: Callable[[StepResult], None]
) -> Results:
    """Pass the predictions of a checkpoint, selected as in `evaluate`, to `take`."""
    _trained(run, path)
    target = target_of(run)
    with model_dir.opened(run.model_dir):
        compiled = compile_run(run, RunMode.PREDICT, target, batches)
    with machine_for(run, compiled.executable, target, RunSpan(0, batches)) as (machine, show):
        found = _restore(run, machine, path)
        samples = step_orders.predict(machine, batches, take, show)
        results = {"global_step": float(found.step), "samples": float(samples)}
        machine.close(results)
    log.info(f"Predicted {samples} samples with the weights of global step {found.step}")
    return results


def _trained(run: EstimatorRun, path: Path | None) -> checkpoints.Checkpoint:
    """Return the given checkpoint, or the newest.

    Raises: UsageError if there is none
    """
    found = checkpoints.open_checkpoint(path) if path else checkpoints.latest(run.model_dir)
    if found is None:
        raise UsageError(
            f"{run.model_dir}: no checkpoint to restore; train first, or set checkpoint_path"
        )
    return found


def _restore(run: EstimatorRun, machine: Machine, path: Path | None) -> checkpoints.Checkpoint:
    """Restore the checkpoint, chosen only now: a concurrent training removes old ones meanwhile."""
    found = _trained(run, path)
    log.info(log_lines.restoring(found.path))
    found.restore(machine.state)
    return found


def write_events(folder: Path, results: Results) -> None:
    """Write an evaluation's events; if that fails, its results are returned anyway."""
    values = dict(results)
    step = int(values.pop("global_step"))
    try:
        with closing(events.EventWriter(folder, RunMode.EVAL)) as writer:
            writer.scalars(values, step)
    except CsrunError as error:
        log.warning(f"cannot write the evaluation's event file: {error}")
