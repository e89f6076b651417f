"""Before a run: match kernels, or compile; an analysis of the input measures then, too."""

import logging
from dataclasses import replace
from pathlib import Path

from csrun.advice.input_fn_report import examine
from csrun.advice.measurements import Measurements
from csrun.compiler import validate_model
from csrun.context import analysis_dir
from csrun.estimator.compilation import (
    Compiled,
    compile_options,
    compile_run,
    show_stage,
    trace_run,
)
from csrun.estimator.input_report import NoReports, describe, readers
from csrun.estimator.place import compile_target
from csrun.estimator.progress import compile_display
from csrun.estimator.run import Run
from csrun.executable import RunMode
from csrun.records import model_dir
from csrun.runtime.wire.messages import Results

log = logging.getLogger("csrun")

MODEL_DIR = "model_dir"  # of an analysis whose command keeps nothing


def validate_only(run: Run, mode: RunMode) -> Results:
    """Match kernels, and leave nothing; no system is needed."""
    target = compile_target(run.context, run.config.cs_ip)
    traced = trace_run(run, compile_options(run.config, mode, target))
    with compile_display(run.context) as begin:
        model = validate_model(traced.module, show_stage, begin)
    layers, kernels = len({op.scope for op in model.parameters}), len(model.kernels)
    log.info(f"Validated: {layers} layers, {kernels} kernels, every operator has its kernel")
    run.reports.give(describe(run.dataset, mode, readers(run.context, False)), None)
    if (folder := _to_measure()) is not None:
        compile_only(replace(run, model_dir=folder / MODEL_DIR, reports=NoReports()), mode)
    return {}


def compile_only(run: Run, mode: RunMode) -> Results:
    """Compile and leave the artifacts; no system is needed."""
    target = compile_target(run.context, run.config.cs_ip)
    with model_dir.opened(run.model_dir):
        compiled = compile_run(run, mode, target, runs=False)
    if (folder := _to_measure()) is not None:
        _measure(run, compiled, mode, folder)
    return {}


def _to_measure() -> Path | None:
    """The folder of the analysis of the input that this is a part of; None without one.

    The first compile is measured: it is in its first run, too, that a job for the analysis feeds.
    """
    folder = analysis_dir()
    return None if folder is None or Measurements.read(folder) is not None else folder


def _measure(run: Run, compiled: Compiled, mode: RunMode, folder: Path) -> None:
    from csrun.advice.sweep import measure_pipeline  # only an analysis pays

    findings = examine(describe(run.dataset, mode, readers(run.context, False)))
    suggestions = tuple(finding.message for finding in findings)
    measure_pipeline(compiled.executable, run.make, run.config.seed, suggestions, folder)
