"""csrun doctor: checks this machine and installation; each failed check has a remedy."""

from typing import TYPE_CHECKING

import click

from csrun.cli import frame
from csrun.cli.site_admin import FAILED, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from csrun.launch.preflight.checks import CheckResult


@click.command("doctor", context_settings=SETTINGS)
@frame.the_site
@frame.in_format
def doctor(site: str | None, output: str) -> int:
    """Check Python, CPU, BLAS, threads, memory, disk, limits, torch, Slurm and the site file.

    Failed checks print a remedy; exit code 1 if any failed. For all nodes of a cluster, run
    'csrun site check'.
    """
    import msgspec

    from csrun.cli import tables

    found = _results(site)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found)))
    else:
        tables.show(("check", "status", "result"), _rows(found), is_wrapped=True)
    return FAILED if any(each.has_failed for each in found) else 0


def _rows(found: "Iterable[CheckResult]") -> "Iterator[tuple[str, str, str]]":
    for each in found:
        yield each.check, each.status, each.result
        if each.remedy:
            yield "", "", f"remedy: {each.remedy}"


def _results(site: str | None) -> "list[CheckResult]":
    import socket

    from csrun.base.errors import CsrunError
    from csrun.launch import backend_of
    from csrun.launch.preflight import checks, installation
    from csrun.launch.preflight.facts import facts_here
    from csrun.site import load

    found = list(installation.checks_of(installation.machine_facts()))
    try:
        known = load(site)
        folder = backend_of(known).folder(1).parent
    except CsrunError as error:
        return [*found, installation.site_problem(error)]
    here = facts_here(socket.gethostname(), folder)
    return [*found, *installation.site_checks(known), *checks.of_node(here, folder)]
