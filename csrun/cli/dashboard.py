"""csrun dashboard: jobs and model_dirs on a web page, live, or as one file."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from csrun.cli import frame

if TYPE_CHECKING:
    from csrun.dashboard import RunCatalog

SETTINGS = frame.SETTINGS | {"allow_interspersed_args": True}


@click.command("dashboard", context_settings=SETTINGS)
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@frame.the_site
@click.option(
    "--port",
    type=frame.WholeNumber(0, 65535),
    default=0,
    help="Port on 127.0.0.1; default: a free one.",
)
@click.option(
    "--export",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page with the runs below FOLDER to a file, and exit.",
)
def dashboard(folder: Path, site: str | None, port: int, export: Path | None) -> int:
    """Show jobs, and the model_dirs below FOLDER, on a web page of this machine.

    The printed address has an access token, which the server requires. The page is read-only.
    Ctrl-C stops the server; jobs continue.
    """
    from csrun.base.errors import UsageError
    from csrun.dashboard import RunCatalog
    from csrun.launch import backend_of
    from csrun.site import load

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; pass one that has model_dirs below it")
    if export is not None and not os.path.isdir(export.parent):
        raise UsageError(f"{export}: no such folder {export.parent}")
    known = load(site)
    catalog = RunCatalog(known, backend_of(known), Path(os.path.abspath(folder)))
    if export is not None:
        _export(catalog, export)
    else:
        _serve(catalog, port)
    return 0


def _export(catalog: "RunCatalog", path: Path) -> None:
    from csrun.base.errors import CsrunError
    from csrun.base.files import write_atomic
    from csrun.base.sizes import size_text
    from csrun.dashboard.page_text import exported_page

    with frame.announced(f"{path}: reading the runs"):
        text = exported_page(catalog)
    try:
        write_atomic(path, text.encode(), durable=False)
    except OSError as error:
        raise CsrunError(f"{path}: cannot be written: {error.strerror}") from error
    click.echo(f"{path}: {size_text(len(text))}; open it in a browser")


def _serve(catalog: "RunCatalog", port: int) -> None:
    from contextlib import suppress

    from csrun.base.errors import CsrunError
    from csrun.dashboard.http_server import ADDRESS, DashboardServer

    try:
        server = DashboardServer(catalog, port)
    except OSError as error:
        raise CsrunError(
            f"{ADDRESS}:{port}: cannot be served: {error.strerror}; choose another --port"
        ) from error
    with server, suppress(KeyboardInterrupt):
        click.echo(f"{server.url}  (Ctrl-C ends it)")
        server.read_ahead()
        server.serve_forever(poll_interval=1.0)
