"""Runs without steps: validate, compile, feed; an input analysis also measures the pipeline.

For `csrun estimate`, the compiled run is estimated.
"""

import logging
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from csrun.advice.feed import drain
from csrun.advice.input_fn_report import Probe, examine
from csrun.advice.measurements import (
    DeliveredRate,
    EstimateRequest,
    FeedRequest,
    Measurements,
)
from csrun.base.errors import UsageError
from csrun.base.run_config import RunConfig
from csrun.compiler import CompileOptions, validate_model
from csrun.context import Preparation, analysis_dir
from csrun.estimator import compilation
from csrun.estimator.compile_observer import observer_of
from csrun.estimator.input_report import NoReports, describe, readers
from csrun.estimator.model_trace import TracedModel
from csrun.estimator.progress import compile_display
from csrun.estimator.run import EstimatorRun
from csrun.estimator.target import RunSpan, cluster_for, compile_target, run_request, target_of
from csrun.executable import Executable, RunMode
from csrun.records import model_dir
from csrun.records.run_estimate import RunEstimate
from csrun.runtime.wire.messages import Results
from csrun.site import System

log = logging.getLogger("csrun")

MODEL_DIR = "model_dir"  # for an analysis whose command has no model_dir


def validate_only(run: EstimatorRun, mode: RunMode) -> Results:
    """Match kernels without writing anything; needs no system."""
    target = compile_target(run.context, run.config)
    compilation.check_batch_bytes(run.dataset)
    traced = compilation.trace_run(run, compilation.run_options(run, mode, target))
    _validate(run, traced)
    if (folder := _to_measure()) is not None:
        return compile_only(replace(run, model_dir=folder / MODEL_DIR), mode)
    run.reports.publish(describe(run.dataset, mode, readers(run.context, False)), None)
    return {}


def compile_only(run: EstimatorRun, mode: RunMode) -> Results:
    """Compile into model_dir; needs no system."""
    target = compile_target(run.context, run.config)
    folder = _to_measure()
    run = _without_conflict(run, folder)
    # an analysis reports once, from its measurements instead of a probe
    compiling = run if folder is None else replace(run, reports=NoReports())
    with model_dir.opened(run.model_dir):
        compiled = compilation.compile_run(compiling, mode, target, runs=False)
    if folder is not None:
        _analyze(run, compiled, mode, target.system, folder)
    return {}


def prepare_traced(
    run: EstimatorRun, tracing: compilation.Tracing, options: CompileOptions, only: Preparation
) -> None:
    """Validate or compile a traced model, such as the first step of a PyTorch loop."""
    folder = _to_measure()
    if only is Preparation.VALIDATE_ONLY:
        _validate(run, tracing.trace(options))
        if folder is None:
            return
        run = replace(run, model_dir=folder / MODEL_DIR)
    run = _without_conflict(run, folder)
    with model_dir.opened(run.model_dir), compile_display(run.context) as begin:
        traced = tracing.trace(options)
        compiled = compilation.compile_fitting(tracing, traced, run.model_dir, options, begin)
    if folder is not None:
        _analyze(run, compiled, options.run_mode, options.system, folder)


def log_prepared(only: Preparation, mode: RunMode) -> None:
    """Log what was done instead of a run."""
    done = "compiled" if only is Preparation.COMPILE_ONLY else "validated"
    log.info(f"{only}: the model was {done} for {mode}; no step was run")


def _validate(run: EstimatorRun, traced: TracedModel) -> None:
    with compile_display(run.context) as begin:
        model = validate_model(traced.module, observer_of(begin))
    layers, kernels = len({op.scope for op in model.parameters}), len(model.kernels)
    log.info(f"Validated: {layers} layers, {kernels} kernels, every operator has its kernel")


def _to_measure() -> Path | None:
    """Folder of the analysis that this run is part of, or None.

    Only the first compile is measured, as a job of the analysis feeds in its first run.
    """
    folder = analysis_dir()
    if folder is None or Measurements.read(folder) or RunEstimate.read(folder):
        return None
    return folder


def _without_conflict(run: EstimatorRun, folder: Path | None) -> EstimatorRun:
    """Return the run of an analysis, which must not write to the model_dir of a training."""
    holder = "" if folder is None else model_dir.training_in(run.model_dir)
    if folder is None or not holder:
        return run
    log.info(f"model_dir {run.model_dir} is in use by {holder}: compiling in a temporary folder")
    return replace(run, model_dir=folder / MODEL_DIR)


def _analyze(
    run: EstimatorRun, compiled: compilation.Compiled, mode: RunMode, system: System, folder: Path
) -> None:
    """Perform the request of an analysis folder: an estimate, or measurements of the input."""
    if (asked := EstimateRequest.read(folder)) is None:
        _measure(run, compiled, mode, folder)
    else:
        _estimate(run, compiled.executable, system, asked, folder)


def _estimate(
    run: EstimatorRun, executable: Executable, system: System, asked: EstimateRequest, folder: Path
) -> None:
    """Estimate the run; the compile directory keeps it for the run itself."""
    from csrun.advice.estimation import EstimatedInput, estimate_of  # only for `csrun estimate`

    given = EstimatedInput.made_by(run.make)
    last = run.config.max_steps if isinstance(run.config, RunConfig) else None
    found = estimate_of(executable, system, given, run.settings, asked.streamers, last)
    found.write(folder)
    if not run.model_dir.is_relative_to(folder):
        with suppress(OSError):
            found.write(executable.directory)


def _measure(
    run: EstimatorRun, compiled: compilation.Compiled, mode: RunMode, folder: Path
) -> None:
    """Measure the input pipeline, and write measurements and report to the analysis folder."""
    from csrun.advice.sweep import measure_pipeline  # imported only by an analysis

    executable = compiled.executable
    measured = measure_pipeline(executable, run.make, run.settings, folder)
    pipeline = describe(
        run.dataset,
        mode,
        readers(run.context, False),
        wanted_per_s=executable.plan.estimate.samples_per_sec,
        seen=Probe.of_worker(measured),
    )
    is_kept = not run.model_dir.is_relative_to(folder)
    run.reports.publish(pipeline, executable.directory if is_kept else None)
    suggestions = tuple(finding.message for finding in examine(pipeline))
    msgspec.structs.replace(measured, suggestions=suggestions).write(folder)


def feed(run: EstimatorRun, asked: FeedRequest, analysis: Path) -> Results:
    """Measure the rate of this job's streamers, without a system or steps.

    Raises: UsageError outside of a job
    """
    if run.context is None or run.folder is None:
        raise UsageError("the rate measurement needs the streamers of a job: run it with csrun_wse")
    streamers = len(run.context.streamers)
    kept = analysis / MODEL_DIR  # exists if the command of the analysis has no model_dir
    run = replace(run, model_dir=kept if kept.exists() else run.model_dir, reports=NoReports())
    target = target_of(run)
    executable = compilation.compile_run(run, RunMode.TRAIN, target).executable
    log.info(f"Feeding from {streamers} streamer(s) for {asked.seconds:g} seconds")
    with ExitStack() as stack:
        cluster = cluster_for(stack, run, target)
        samples, seconds = drain(
            cluster.feed(run_request(run, executable, target, RunSpan(0, None))), asked.seconds
        )
        cluster.stop({})
    rate = samples / seconds if seconds else 0.0
    DeliveredRate(rate, seconds, streamers).write(analysis)
    log.info(f"Streamers delivered {rate:,.0f} samples/s")
    return {}
