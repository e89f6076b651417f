"""Input Function Report of a run: written to its compile directory, and logged once."""

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from csrun.advice.input_fn_report import (
    TEXT_FILE,
    Finding,
    Pipeline,
    Probe,
    Severity,
    examine,
    probe,
    rate_text,
    report_text,
    suggestions_text,
)
from csrun.base.errors import UsageError
from csrun.base.files import write_atomic
from csrun.base.open_folder import open_folder
from csrun.context import TaskContext, TaskEntry
from csrun.data import Dataset
from csrun.executable import RunMode

log = logging.getLogger("csrun")


@dataclass(frozen=True)
class Readers:
    """Number of streaming tasks, and the least CPUs of each; None before a job is planned.

    have_rings: True for streamers, False for the process that runs the steps.
    """

    streamers: int | None
    cpus: int | None
    have_rings: bool = True


class InputReports:
    """Reports of an estimator's runs, each finding logged once."""

    def __init__(self) -> None:
        self._logged: set[tuple[bool, str, str]] = set()

    def publish(self, pipeline: Pipeline, folder: Path | None) -> None:
        """Write a pipeline's report to a compile directory, if any, and log new findings."""
        findings = examine(pipeline)
        if folder is not None:
            text = report_text(pipeline, findings)
            # the report is optional
            with suppress(OSError, UsageError), open_folder(folder, make=False) as place:
                write_atomic(place / TEXT_FILE, text.encode(), durable=False)
        new = tuple(finding for finding in findings if self._is_new(pipeline, finding))
        if new:
            _log_findings(pipeline, new, folder)
        elif not findings and pipeline.training and self._is_new(pipeline, None):
            fine = "Input Function Report: no suggestions."
            log.info(" ".join(filter(None, [fine, rate_text(pipeline)])))

    def _is_new(self, pipeline: Pipeline, finding: Finding | None) -> bool:
        what = (finding.rule, finding.operator.where) if finding else ("", "")
        key = (pipeline.training, *what)
        is_new = key not in self._logged
        self._logged.add(key)
        return is_new


class NoReports(InputReports):
    """Reports of a run that does not report on its input function."""

    def publish(self, pipeline: Pipeline, folder: Path | None) -> None:
        """Ignore the report."""


def _log_findings(pipeline: Pipeline, findings: tuple[Finding, ...], folder: Path | None) -> None:
    """Log the report as one record, so that no other line comes in between."""
    warns = any(finding.severity is Severity.WARNING for finding in findings)
    where = f"Input Function Report: {folder / TEXT_FILE}" if folder is not None else ""
    lines = [suggestions_text(findings), rate_text(pipeline), where]
    log.log(logging.WARNING if warns else logging.INFO, "\n".join(filter(None, lines)))


def readers(context: TaskContext | None, runs: bool) -> Readers:
    """Return the streaming tasks, if this process's job is the run.

    runs: True if a run follows the compile; without a launcher, this process streams then.
    """
    if context is not None and context.mode is not None:
        tasks = [context.job.tasks[rank] for rank in context.streamers]
        return Readers(len(tasks), min(_cpus(context, task) for task in tasks))
    if not runs:
        return Readers(None, None)
    return Readers(1, len(os.sched_getaffinity(0)), have_rings=False)


def _cpus(context: TaskContext, task: TaskEntry) -> int:
    return len(task.cpus) or context.job.cpus_per_task


def describe(
    dataset: Dataset,
    run_mode: RunMode,
    readers: Readers,
    last_step: int | None = None,
    wanted_per_s: float | None = None,
    seen: Probe | None = None,
) -> Pipeline:
    """Describe a data set's pipeline, probing it if there are no measurements."""
    seen = seen or probe(dataset)
    return Pipeline(
        dataset.operators,
        training=run_mode is RunMode.TRAIN,
        indexable=dataset.indexable,
        cardinality=dataset.cardinality,
        last_step=last_step,
        streamers=readers.streamers,
        cpus=readers.cpus,
        has_ring=readers.have_rings,
        wanted_per_s=wanted_per_s,
        costs=seen.costs,
        batch_s=seen.batch_s,
        spreads=seen.spreads,
    )
