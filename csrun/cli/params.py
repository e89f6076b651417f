"""csrun params: validates, completes and compares params files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from csrun.cli import frame

if TYPE_CHECKING:
    import msgspec

    from csrun.base.flat_values import Difference

SETTINGS = frame.SETTINGS | {"allow_interspersed_args": True}
DIFFERENT = 1  # exit code
the_script = click.option(
    "--script",
    type=click.Path(path_type=Path),
    help="The script that defines the params, executed up to csrun.params.run; without it, only"
    " the section runconfig is checked.",
)
a_file = click.Path(path_type=Path)


@click.group(cls=frame.CommandGroup, context_settings=frame.SETTINGS)
def params() -> None:
    """Validate, complete and compare params files."""


@params.command(context_settings=SETTINGS)
@click.argument("files", metavar="FILE...", type=a_file, nargs=-1, required=True)
@the_script
def validate(files: tuple[Path, ...], script: Path | None) -> int:
    """Check params files for unknown keys, with suggestions, and invalid values.

    Exit code 2 if a file is invalid.
    """
    from csrun.base.errors import UsageError
    from csrun.base.safe_text import printable
    from csrun.params.schema import completed

    schema, code = _schema(script), 0
    for file in files:
        try:
            found = completed(file, schema)
            rest = [] if schema else sorted(found.keys() - {"runconfig"})
            only = f" runconfig; --script RUN.py checks {', '.join(rest)}" if rest else ""
            click.echo(printable(f"{file}: valid{only}"))
        except UsageError as error:
            click.echo(f"csrun: error: {printable(str(error))}", err=True)
            code = error.exit_code
    return code


@params.command(context_settings=SETTINGS)
@click.argument("files", metavar="FILE...", type=a_file, nargs=-1, required=True)
@the_script
@frame.in_format
def show(files: tuple[Path, ...], script: Path | None, output: str) -> int:
    """Print the params of a run: all keys, with defaults, as YAML or JSON."""
    import msgspec
    import yaml

    from csrun.base.safe_text import printable
    from csrun.params.schema import completed

    schema = _schema(script)
    for file in files:
        found = completed(file, schema)
        if len(files) > 1 and output == "table":
            click.echo(printable(f"--- # {file}"))
        if output == "json":
            click.echo(msgspec.json.format(msgspec.json.encode(found)))
        else:
            click.echo(printable(yaml.safe_dump(found, sort_keys=False)), nl=False)
    return 0


@params.command(context_settings=SETTINGS)
@click.argument("first", type=a_file)
@click.argument("second", type=a_file)
@the_script
@frame.in_format
def diff(first: Path, second: Path, script: Path | None, output: str) -> int:
    """Compare the params of runs with two params files; exit code 1 if anything differs."""
    from csrun.base.flat_values import differences, flattened
    from csrun.params.schema import completed

    schema = _schema(script)
    found = differences(*(flattened(completed(file, schema)) for file in (first, second)))
    _show_differences(found, output)
    return DIFFERENT if found else 0


def _show_differences(found: "list[Difference]", output: str) -> None:
    import msgspec

    from csrun.base.flat_values import MISSING
    from csrun.cli import tables

    def text(value: Any) -> str:
        return MISSING if value is None else str(value)

    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found)))
    elif found:
        rows = [(each.key, text(each.first), text(each.second)) for each in found]
        tables.show(("key", "first", "second"), rows)
    else:
        click.echo("no differences")


def _schema(script: Path | None) -> "type[msgspec.Struct] | None":
    from csrun.launch.script_imports import may_use_params
    from csrun.params.schema import schema_of, unknown_params

    if script is None:
        return None
    if script.is_file() and not may_use_params(str(script)):  # which would run as a whole
        raise unknown_params(script)
    return schema_of(script)
