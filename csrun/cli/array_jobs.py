"""csrun_wse --array: one job per index, and one table of their results."""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from csrun.base.errors import UsageError
from csrun.cli import frame, tables

if TYPE_CHECKING:
    from csrun.launch import JobRequest
    from csrun.launch.array.array_elements import ArrayElement
    from csrun.launch.array.array_indices import ArrayIndices
    from csrun.launch.array.array_table import ElementRow
    from csrun.site import Site

NAME = "csrun_wse"
DROPPABLE = ("model_dir",)  # on a narrow terminal


def run_array(
    request: "JobRequest",
    site: "Site",
    spec_text: str,
    settings: Sequence[str],
    *,
    is_dry: bool,
    as_json: bool,
) -> int:
    """Run all elements, or submit them; return the highest of their exit codes.

    Raises: UsageError before anything runs, if an element is invalid
    """
    from csrun.launch import dry_run
    from csrun.launch.array import array_indices
    from csrun.launch.array.array_elements import request_of

    spec = array_indices.parse(spec_text)
    is_submitted = request.sbatch or request.detach
    if is_submitted and spec.at_once is not None:
        option = "--sbatch" if request.sbatch else "--detach"
        raise UsageError(
            f"--array {spec_text}: %{spec.at_once} has no effect with {option}, which submits all"
            " elements: drop one of the two"
        )
    elements = _checked_elements(request, site, spec, settings)
    if not elements:  # the check has printed the reason
        return UsageError.exit_code
    if is_dry:
        plan = dry_run(request_of(request, elements[0], 0), site)
        if as_json:
            click.echo(msgspec.json.encode({"elements": elements, "plan": plan}))
        else:
            _show_elements(elements)
            click.echo()
            tables.show_plan(plan)
        return 0
    return _run(request, site, spec, elements)


def _checked_elements(
    request: "JobRequest", site: "Site", spec: "ArrayIndices", settings: Sequence[str]
) -> "tuple[ArrayElement, ...]":
    """Return all elements after their checks; none if the script refuses one."""
    from csrun.launch import check
    from csrun.launch.array import array_elements, earlier_runs, element_params
    from csrun.launch.command_checks import require_command
    from csrun.launch.piped_params import refuse_pipe
    from csrun.launch.user_command import UserCommand

    require_command(request.command, "csrun_wse --array 1-8 python-ws run.py")
    array_elements.require_own_outputs(request.options.output)
    command = UserCommand(request.command).without_options()
    refuse_pipe(command, "can be read only once")
    script = array_elements.ArrayScript.of(command.script)
    values = array_elements.parse_settings(settings, spec)
    elements = array_elements.elements_of(UserCommand(request.command), spec, values, script)
    element_params.require_params(elements)
    differ = any(array_elements.INDEX in word for word in request.command)
    for element in elements if differ else elements[:1]:
        check(array_elements.request_of(request, element, 0), site)
    if command.script is None or not script.takes_set:
        return elements
    lines = [UserCommand(each.command).without_options().argv[2:] for each in elements]
    model_dirs = _model_dirs(Path(command.script), lines)
    if model_dirs is None:
        return ()
    elements = array_elements.with_model_dirs(elements, command, model_dirs)
    earlier_runs.require_same_values(elements)
    return elements


def _model_dirs(script: Path, lines: Sequence[tuple[str, ...]]) -> "list[str | None] | None":
    """Return the model_dir of each command line, by the script's own params; None if it refuses
    one.

    Runs in a separate process, because the script's imports do not belong in a launcher.
    """
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.dup2(2, 1)  # output of the script is not part of the answer

        def find() -> int:
            from csrun.params.schema import model_dirs_of

            os.write(write_end, msgspec.json.encode(model_dirs_of(script, lines)))
            return 0

        code = 1
        try:
            code = frame.exit_code_of(NAME, find)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(write_end)
    with open(read_end, "rb") as answer:
        found = answer.read()
    os.waitpid(pid, 0)
    return msgspec.json.decode(found, type=list[str | None]) if found else None


def _run(
    request: "JobRequest", site: "Site", spec: "ArrayIndices", elements: "tuple[ArrayElement, ...]"
) -> int:
    from csrun.context import environment, export_arguments
    from csrun.launch import backend_of, check, launch
    from csrun.launch.array.array_elements import arguments_of, request_of
    from csrun.launch.array.array_file import StoredArray
    from csrun.launch.array.array_run import ArrayRun, ElementLauncher
    from csrun.launch.array.array_table import rows_of

    stored = StoredArray(site, elements)
    array_id = stored.file.array_id
    is_submitted = request.sbatch or request.detach

    def launcher(element: "ArrayElement") -> ElementLauncher:
        def run() -> int:
            environment.adopt_array(array_id, element.index, spec.indices)
            export_arguments(arguments_of(element, sys.argv[1:], request.command))
            own = request_of(request, element, array_id)
            return frame.exit_code_of(NAME, lambda: launch(own, site))

        return ElementLauncher(element.index, run)

    def ended(index: int, code: int) -> None:
        if code or not is_submitted:
            stored.end(index, code)

    _, plan = check(request_of(request, elements[0], array_id), site)
    in_user_job = environment.user_job() is not None and not request.new_job
    fit = 1 if is_submitted or in_user_job else site.nodes.count // plan.layout.nodes
    click.echo(f"Launching: array {array_id}, {len(elements)} x {shlex.join(request.command)}")
    code = ArrayRun(map(launcher, stored.file.elements), spec.at_once or fit, ended).run()
    if is_submitted:
        click.echo(f"array {array_id}: 'csctl get array {array_id}' shows its results")
    else:
        show_rows(rows_of(stored.file, backend_of(site).jobs(all_states=True)))
    return code


def show_rows(rows: "Sequence[ElementRow]") -> None:
    """Print the results of an array as a table; a model_dir relative to the working directory, if
    it is below.
    """
    headings = headings_of(rows, is_short=True)
    shown = [
        msgspec.structs.replace(row, model_dir=_relative_to_cwd(row.model_dir)) for row in rows
    ]
    tables.show(headings, map(row_of, shown), cut="why", droppable=DROPPABLE)


def _relative_to_cwd(path: str | None) -> str | None:
    with suppress(FileNotFoundError, ValueError):  # the folder was removed, or is not below it
        return None if path is None else str(Path(path).relative_to(Path.cwd()))
    return path


def headings_of(rows: "Sequence[ElementRow]", *, is_short: bool) -> tuple[str, ...]:
    """Return the headings of the results: a key's last part, if that is short and unique."""
    keys = list(rows[0].values)
    named = _short(keys) if is_short else keys
    return ("index", "job", *named, "state", "steps", "loss", "rate", "model_dir", "why")


def row_of(row: "ElementRow") -> tuple[str, ...]:
    """Return the table row of an element."""
    return (
        str(row.index),
        "" if row.job is None else str(row.job),
        *row.values.values(),
        row.state,
        "" if row.step is None else str(row.step),
        "" if row.loss is None else f"{row.loss:.6g}",
        "" if row.samples_per_sec is None else f"{row.samples_per_sec:.1f}",
        row.model_dir or "",
        tables.short_reason(row.why),
    )


def _short(keys: Sequence[str]) -> list[str]:
    """Return the last parts of the keys, or the full key if another one has the same last part."""
    last = [key.rpartition(".")[2] for key in keys]
    return [key if last.count(part) > 1 else part for key, part in zip(keys, last, strict=True)]


def _show_elements(elements: "Sequence[ArrayElement]") -> None:
    keys = list(elements[0].values)
    rows = (
        (str(e.index), *e.values.values(), e.model_dir or "", shlex.join(e.command))
        for e in elements
    )
    tables.show(("index", *_short(keys), "model_dir", "command"), rows, cut="command")
