"""The Input Function Report of a run: kept with its compile, and said once in its log."""

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
from csrun.base.files import write_whole
from csrun.base.open_folder import open_folder
from csrun.context import TaskContext, TaskEntry
from csrun.data import Dataset
from csrun.executable import RunMode

log = logging.getLogger("csrun")


@dataclass(frozen=True)
class Readers:
    """How many tasks stream, and the CPUs that each has at least; None before a job is planned.

    have_rings: whether they are streamers, not this process's own steps.
    """

    streamers: int | None
    cpus: int | None
    have_rings: bool = True


class InputReports:
    """The reports of an estimator's runs; what one has said, none says again."""

    def __init__(self) -> None:
        self._said: set[tuple[bool, str, str]] = set()

    def give(self, pipeline: Pipeline, folder: Path | None) -> None:
        """Keep a pipeline's report in a compile directory, if there is one, and say what is new."""
        findings = examine(pipeline)
        if folder is not None:
            text = report_text(pipeline, findings)
            # the compile stands without it
            with suppress(OSError, UsageError), open_folder(folder, make=False) as place:
                write_whole(place / TEXT_FILE, text.encode(), durable=False)
        new = tuple(finding for finding in findings if self._is_new(pipeline, finding))
        if new:
            _say(pipeline, new, folder)
        elif not findings and pipeline.training and self._is_new(pipeline, None):
            fine = "Input Function Report: nothing to improve was found."
            log.info(" ".join(filter(None, [fine, rate_text(pipeline)])))

    def _is_new(self, pipeline: Pipeline, finding: Finding | None) -> bool:
        what = (finding.rule, finding.operator.where) if finding else ("", "")
        said = (pipeline.training, *what)
        is_new = said not in self._said
        self._said.add(said)
        return is_new


class NoReports(InputReports):
    """For a run that is not about the input function's text."""

    def give(self, pipeline: Pipeline, folder: Path | None) -> None:
        """Say nothing."""


def _say(pipeline: Pipeline, findings: tuple[Finding, ...], folder: Path | None) -> None:
    """In one record, so that no other line comes between."""
    warns = any(finding.severity is Severity.WARNING for finding in findings)
    where = f"Input Function Report: {folder / TEXT_FILE}" if folder is not None else ""
    lines = [suggestions_text(findings), rate_text(pipeline), where]
    log.log(logging.WARNING if warns else logging.INFO, "\n".join(filter(None, lines)))


def readers(context: TaskContext | None, runs: bool) -> Readers:
    """The tasks that stream, when this process's job is the run.

    runs: whether a run follows the compile; without a launcher this process then streams.
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
    """What is known of a data set's pipeline in the chief; without measurements it takes a look."""
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
