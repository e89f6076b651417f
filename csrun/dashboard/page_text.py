"""Text of the dashboard's page: served, or as one file with its data."""

import json
from pathlib import Path
from typing import Any

from csrun.base.errors import CsrunError, UsageError
from csrun.base.html_pages import page
from csrun.dashboard.run_catalog import RunCatalog, moment, plain
from csrun.launch.process.task_output import log_name

PAGE = Path(__file__).with_name("page")
CHIEF_LINES, TASK_LINES = 2000, 100  # lines of a log in the file


def served_page() -> str:
    """Return the page that requests its data from the server."""
    return page(PAGE, {}, data="null")


def exported_page(catalog: RunCatalog) -> str:
    """Return the page with the data of the runs whose model_dir is below the catalog's folder.

    Raises: UsageError without such runs; CsrunError if the scheduler does not answer
    """
    table = catalog.rows()
    kept = [row for row in table.rows if catalog.is_below(row.id)]
    if not kept:
        raise UsageError(f"{table.folder}: no model_dirs below it; name a folder with trainings")
    rows = plain(table) | {"rows": plain(kept)}
    runs = {row.id: _run(catalog, row.id) for row in kept}
    return page(PAGE, {}, data=script_text({"taken": moment(), "table": rows, "runs": runs}))


def script_text(data: Any) -> str:
    """Return data as JSON that cannot end the script element around it."""
    return json.dumps(data).replace("<", "\\u003c")


def _run(catalog: RunCatalog, run: str) -> dict[str, Any]:
    """Return everything that the page shows of a run."""
    history = catalog.detail(run)
    logs = {}
    for task in history.detail.files.logs:
        log = catalog.log(run, task)
        most = CHIEF_LINES if task == log_name(0) else TASK_LINES
        logs[task] = log | {"lines": log["lines"][-most:]}
    shown: dict[str, Any] = plain(history)
    return shown | {
        "settings": catalog.settings(run),
        "wafer": wafer_of(catalog, run),
        "logs": logs,
    }


def wafer_of(catalog: RunCatalog, run: str) -> Any:
    """Return the wafer of a run, or why it cannot be shown."""
    try:
        return plain(catalog.wafer(run))
    except CsrunError as error:
        return {"error": str(error)}
