"""Data of the dashboard, by the id of a run."""

import json
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import account_name, read_end
from csrun.dashboard.run_detail import (
    RunDetail,
    checkpoint_lines,
    files_of,
    performance_of,
    report_of,
    traces_of,
)
from csrun.dashboard.run_table import RunRow, RunRows, RunTable
from csrun.jobs.folder import JobFolder
from csrun.launch.backend import Backend
from csrun.launch.process.usage_log import LoadSample
from csrun.records.model_dir import newest_compile
from csrun.records.run_comparison import identity_of, parameters_of
from csrun.site import Site
from csrun.watch import Collector
from csrun.watch.logged_steps import LoggedSteps
from csrun.watch.run_values import EVERYTHING, RunValues
from csrun.watch.site_snapshot import JobLine

if TYPE_CHECKING:
    from csrun.dashboard.wafer_view import WaferView

LOG_BYTES = 4 << 20  # bytes at a log's end that are searched
LOG_LINES = 2000
FAILED = frozenset({"FAILED", "TIMEOUT", "LOST", "NODE_FAIL", "OUT_OF_MEMORY", "CANCELLED"})
MOST_FOLDERS_READ = 8  # model_dirs whose event files stay open

FACTS_S = 10.0  # a cluster's controller serves other users, too

Facts = tuple[tuple[str, str], ...]
Point = tuple[int, float, dict[str, float]]


class RunHistory(msgspec.Struct, frozen=True):
    """Current state of a run, and its history.

    points: logged steps from number `after` on: step, time in seconds since the epoch, values by
        tag.
    usage: CPU and memory of tasks.
    """

    detail: RunDetail
    points: list[Point]
    usage: list[LoadSample] = []
    after: int = 0


class UnknownRunError(UsageError):
    """Run that is not in the table."""


class RunCatalog:
    """Runs of a site and of a folder. Not thread-safe."""

    def __init__(self, site: Site, backend: Backend, folder: Path) -> None:
        self._site, self._backend = site, backend
        self._collector = Collector(site, backend, all_states=True, extent=EVERYTHING)
        self._table = RunTable(self._collector, backend, folder)
        self._values: dict[str, RunValues] = {}
        self._rows: dict[str, RunRow] = {}
        self._facts: dict[int, tuple[float, str, Facts]] = {}  # with the time and the job's state

    def rows(self) -> RunRows:
        """Return the table of runs."""
        found = self._table.read()
        self._rows = {row.id: row for row in found.rows}
        return found

    def row(self, run: str) -> RunRow:
        """Return a row of the table. Raises: UnknownRunError"""
        if run not in self._rows:
            self.rows()
        try:
            return self._rows[run]
        except KeyError:
            raise UnknownRunError(f"run {run}: no such run; reload the page") from None

    def model_dir(self, run: str) -> Path | None:
        """Return the model_dir of a run. Raises: UnknownRunError"""
        self.row(run)
        return self._table.by_id.get(run)

    def detail(self, run: str, after: int = 0) -> RunHistory:
        """Return a run with its logged steps and its tasks' use of CPU and memory.

        after: number of the first logged step to return; ignored if there are fewer steps now

        Raises: UnknownRunError; CsrunError if the scheduler does not answer
        """
        row = self.row(run)
        if row.job_id is None:
            return self._of_folder(row, after)
        return self._of_job(row, row.job_id, after)

    def _of_job(self, row: RunRow, job_id: int, after: int) -> RunHistory:
        snapshot = self._collector.snapshot(job_id)
        job = next(line for line in snapshot.jobs if line.job_id == job_id)
        shown = snapshot.job
        assert shown is not None
        folder = self._own_folder(row)
        model_dir = None if shown.model_dir is None else Path(shown.model_dir)
        if model_dir is not None:
            self._table.by_id[row.id] = model_dir  # before the table is read again
        since_s = (job.started or job.submitted).timestamp()
        until_s = None if job.ended is None else job.ended.timestamp()
        run = shown.run
        detail = RunDetail(
            row.id,
            job.name,
            job.state,
            job_id,
            job.why if job.state in FAILED else "",
            self._job_facts(job),
            shown.model_dir,
            None if run is None else msgspec.structs.replace(run, losses=()),
            shown.tasks,
            () if model_dir is None else checkpoint_lines(model_dir),
            None if model_dir is None else performance_of(model_dir, since_s, until_s),
            files_of(model_dir, folder),
        )
        usage = self._collector.usage(job_id)
        return _history(detail, self._collector.logged(job_id), after, usage)

    def _job_facts(self, job: JobLine) -> Facts:
        """Return details of a job; cached for some seconds if it has not changed."""
        known = self._facts.get(job.job_id)
        if known is None or known[1] != job.state or known[0] + FACTS_S < time.monotonic():
            (status,) = self._backend.jobs(job.job_id)
            known = (time.monotonic(), job.state, tuple(status.details()))
            self._facts[job.job_id] = known
        return known[2]

    def _of_folder(self, row: RunRow, after: int) -> RunHistory:
        model_dir = self._table.by_id[row.id]
        assert model_dir is not None
        values = self._values.pop(row.id, None) or RunValues(model_dir, None, None, EVERYTHING)
        self._values[row.id] = values
        if len(self._values) > MOST_FOLDERS_READ:
            del self._values[next(iter(self._values))]
        run = values.progress(None)
        begun = "" if row.begun is None else row.begun.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        facts = {"folder": str(model_dir), "state": row.state, "events since": begun}
        detail = RunDetail(
            row.id,
            row.name,
            row.state,
            facts=tuple((name, value) for name, value in facts.items() if value),
            model_dir=str(model_dir),
            run=None if run is None else msgspec.structs.replace(run, losses=()),
            checkpoints=checkpoint_lines(model_dir),
            performance=performance_of(model_dir, 0.0, None),
            files=files_of(model_dir, None),
        )
        return _history(detail, values.logged, after, [])

    def _own_folder(self, row: RunRow) -> JobFolder | None:
        """Return the folder of this account's job."""
        if row.job_id is None or row.user != account_name(os.getuid()):
            return None
        return JobFolder(self._backend.folder(row.job_id))

    def settings(self, run: str) -> dict[str, dict[str, str]]:
        """Return parameters and identity of a run, as `csrun compare` reads them."""
        model_dir = self.model_dir(run)
        found: dict[str, dict[str, str]] = {"parameters": {}, "identity": {}}
        if model_dir is not None:
            try:
                values = parameters_of(model_dir)
            except (CsrunError, OSError, ValueError) as error:
                values = {"params": f"cannot be read: {error}"}
            found["parameters"] = {key: str(value) for key, value in values.items()}
            found["identity"] = identity_of(model_dir)
        return found

    def log(self, run: str, task: str, search: str = "") -> dict[str, Any]:
        """Return the newest lines of a task's log that contain a text, ignoring case.

        Raises: UnknownRunError; UsageError for a log that the run does not have
        """
        folder = self._own_folder(self.row(run))
        if folder is None or task not in files_of(None, folder).logs:
            raise UsageError(f"log {task}: no such log of run {run}")
        lines = read_end(folder.log(task), LOG_BYTES).splitlines()
        wanted = search.casefold()
        found = [line for line in lines if wanted in line.casefold()]
        return {"task": task, "found": len(found), "lines": found[-LOG_LINES:]}

    def wafer(self, run: str) -> "WaferView | None":
        """Return the wafer of a run; None without a compile.

        Raises: UnknownRunError; CsrunError for a plan of another version
        """
        model_dir = self.model_dir(run)
        compiled = None if model_dir is None else newest_compile(model_dir)
        if model_dir is None or compiled is None:
            return None
        # imports the compiler's report
        from csrun.dashboard.wafer_view import read_plan, wafer_view

        plan = read_plan(compiled)
        try:
            return wafer_view(plan, self._site.systems[0], traces_of(model_dir))
        except (ArithmeticError, LookupError, ValueError) as error:  # a modified plan
            raise CsrunError(f"{compiled}: plan cannot be drawn: {error}") from error

    def file(self, run: str, name: str) -> Path | None:
        """Return a file that the page links to: `compile_report`, or a trace by name."""
        model_dir = self.model_dir(run)
        if model_dir is None:
            return None
        if name == "compile_report":
            return report_of(model_dir)
        return next((path for path in traces_of(model_dir) if path.name == name), None)

    def is_below(self, run: str) -> bool:
        """Return whether the run's model_dir is in the dashboard's folder."""
        model_dir = self.model_dir(run)
        top = os.path.realpath(self._table.folder)
        return model_dir is not None and Path(os.path.realpath(model_dir)).is_relative_to(top)


def _history(
    detail: RunDetail, logged: LoggedSteps, after: int, usage: list[LoadSample]
) -> RunHistory:
    after = after if after < len(logged) else 0
    steps = logged.since(after)
    points = [(step.step, step.wall_s, dict(step.values)) for step in steps]
    return RunHistory(detail, points, usage, after)


def json_of(value: Any) -> str:
    """Return a value as JSON, with names of numbers that are not finite."""
    try:
        return json.dumps(msgspec.to_builtins(value), allow_nan=False)
    except ValueError:
        return json.dumps(plain(value))


def plain(value: Any) -> Any:
    """Convert a value for JSON: numbers that are not finite become their names."""
    return _finite(msgspec.to_builtins(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def moment() -> str:
    """Return the current time, for the page's head."""
    return datetime.now(UTC).isoformat(timespec="seconds")
