"""csrun checkpoint: lists, verifies, compares and converts checkpoints, tensor by tensor."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from csrun.base.choice import Choice
from csrun.cli import frame

if TYPE_CHECKING:
    from csrun.records.checkpoints import Comparison, Listed, VerifiedCheckpoint

SETTINGS = frame.SETTINGS | {"allow_interspersed_args": True}
DIFFERENT = DAMAGED = 1  # exit codes
FORMATS = Choice(["huggingface", "torch"])

a_path = click.argument("path", type=click.Path(path_type=Path))


@click.group(cls=frame.CommandGroup, context_settings=frame.SETTINGS)
def checkpoint() -> None:
    """List, verify, compare and convert checkpoints."""


@checkpoint.command("list", context_settings=SETTINGS)
@a_path
@frame.in_format
def list_checkpoints(path: Path, output: str) -> int:
    """List the checkpoints of a model_dir: steps, sizes, dates, which are kept, and their run.

    Properties of the run that all of them share are printed once, below the table.
    """
    from csrun.cli import tables
    from csrun.records.checkpoints import listing

    found = listing(path)
    if output == "json":
        _print_json(found)
    else:
        common = _common(found)
        rows = [_row(one, common) for one in found]
        headings = ("step", "size", "written", "index", "")
        tables.show(headings, rows, cut="")
        if common:
            click.echo(f"common to all: {_of(common)}")
    return 0


def _common(found: "list[Listed]") -> dict[str, str]:
    """Return the fields that the identities of all readable checkpoints share."""
    identities = [one.identity for one in found if one.problem is None]
    first = identities[0] if identities else {}
    return {
        name: value
        for name, value in first.items()
        if value and all(identity.get(name) == value for identity in identities)
    }


def _of(identity: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in identity.items())


def _row(found: "Listed", common: dict[str, str]) -> tuple[str, ...]:
    from datetime import datetime

    written = datetime.fromtimestamp(found.written_s).isoformat(" ", "seconds")
    own = {n: value for n, value in found.identity.items() if value and n not in common}
    of = _of(own) if found.problem is None else f"damaged: {found.problem}"
    return str(found.step), f"{found.nbytes:,}", written, found.place, of


@checkpoint.command(context_settings=SETTINGS)
@a_path
@frame.in_format
def verify(path: Path, output: str) -> int:
    """Verify a checkpoint, or all of a model_dir; exit code 1 if one is damaged.

    The index, the checksum of each manifest, and through it the checksum of each tensor are
    checked.
    """
    from csrun.records import checkpoints

    folder, listed, index_problem = _named(path)
    names = [one.name for one in listed]
    found = []
    for name in names:
        with _bar(f"verifying {name}") as show:
            one = checkpoints.verify(folder, name, show)
        if one.damages and path == folder and not checkpoints.checkpoint_exists(folder, name):
            click.echo(
                f"{name}: removed during the check, probably by a running training", err=True
            )
            continue
        found.append(one)
        if output != "json":
            _print_verified(found[-1])
    good = [one.name for one in found if not one.damages]
    if (
        not good
        and path != folder
        and (other := checkpoints.newest_intact(folder, damaged=names[0]))
    ):
        good.append(other.name)
    newest = good[-1] if good else None
    if output == "json":
        _print_json({"index": index_problem, "checkpoints": found, "newest_good": newest})
    else:
        if index_problem is not None:
            click.echo(f"index: {index_problem}")
        click.echo(f"newest good checkpoint: {newest or 'none'}")
    is_damaged = index_problem is not None or any(one.damages for one in found)
    return DAMAGED if is_damaged else 0


def _named(path: Path) -> "tuple[Path, list[Listed], str | None]":
    """Return the folder, the checkpoints that a path names, and the problem of the index."""
    from csrun.base.errors import UsageError
    from csrun.records import checkpoints

    if path.is_dir():
        return path, checkpoints.listing(path), checkpoints.index_problem(path)
    name = checkpoints.name_at(path)
    try:
        listed = checkpoints.listing(path.parent)
    except UsageError:  # which names the folder although the user named a file
        raise UsageError(
            f"{path}: not a checkpoint; pass a model_dir or a checkpoint file"
        ) from None
    found = [one for one in listed if one.name == name]
    if not found:
        raise UsageError(
            f"{path}: no such checkpoint; list them with 'csrun checkpoint list {path.parent}'"
        )
    return path.parent, found, None


def _print_verified(one: "VerifiedCheckpoint") -> None:
    if not one.damages:
        click.echo(f"{one.name}: good, {one.tensors} tensors, {one.nbytes:,} bytes")
    for damage in one.damages:
        click.echo(f"{one.name}: damaged: {damage}")


@checkpoint.command(context_settings=SETTINGS)
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@frame.in_format
def diff(first: Path, second: Path, output: str) -> int:
    """Compare two checkpoints, tensor by tensor; exit code 1 if anything differs.

    FIRST and SECOND: a checkpoint's file or name, or a model_dir for its newest. MAX ABS is the
    largest difference of two values, RELATIVE the norm of all differences of a tensor over the
    larger of its two norms.
    """
    from csrun.cli import tables
    from csrun.records.checkpoints import compare, open_checkpoint

    a, b = open_checkpoint(first), open_checkpoint(second)
    found = []
    with _bar("comparing") as show:
        for one in compare(a, b):
            found.append(one)
            show(len(found), len(a.manifest.tensors.keys() | b.manifest.tensors.keys()))
    differing = [one for one in found if not one.is_same]
    if output == "json":
        _print_json(found)
    else:
        if differing:
            tables.show(("tensor", "max abs", "relative", ""), map(_difference, differing))
        same = len(found) - len(differing)
        counts = f"{same} with identical bits, {len(differing)} that differ"
        click.echo(f"{len(found)} tensors: {counts}")
    return DIFFERENT if differing else 0


def _difference(one: "Comparison") -> tuple[str, ...]:
    if one.problem is not None:
        return one.name, "", "", one.problem
    return one.name, f"{one.max_abs:.3g}", f"{one.relative:.3g}", ""


@checkpoint.command(context_settings=SETTINGS)
@a_path
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--from", "source_format", type=FORMATS, help="Format of PATH; TARGET is a model_dir."
)
@click.option("--to", "target_format", type=FORMATS, help="Format of TARGET.")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="huggingface only: the model's convert.py, or its folder.",
)
@click.option(
    "-p",
    "--params",
    type=click.Path(path_type=Path),
    help="huggingface only: the model's params file.",
)
@click.option(
    "--max-shard-size", default="5GB", show_default=True, help="huggingface only: size of a file."
)
def convert(
    path: Path,
    target: Path,
    source_format: str | None,
    target_format: str | None,
    model: Path | None,
    params: Path | None,
    max_shard_size: str,
) -> int:
    """Convert a checkpoint to another program's format, or from one.

    torch: a state_dict in a .pt, .pth or .safetensors file, without optimizer state; it has
    PyTorch's names for a PyTorch script, else those of the checkpoint. huggingface: a folder, as
    transformers saves a model.
    """
    from csrun.cli import conversion
    from csrun.records import log_lines

    if (source_format is None) == (target_format is None):
        raise click.UsageError("give one of --from and --to")
    log_lines.configure()
    if "torch" in (source_format, target_format):
        for option, value in (("--model", model), ("--params", params)):
            if value is not None:
                raise click.UsageError(f"{option} applies to huggingface only: drop it")
        if source_format:
            conversion.from_torch(path, target)
        else:
            conversion.to_torch(path, target)
        return 0
    if model is None:
        raise click.UsageError("give --model, the folder of the model's convert.py")
    if source_format:
        conversion.from_huggingface(path, target, model, params)
    else:
        conversion.to_huggingface(path, target, model, params, max_shard_size)
    return 0


@contextmanager
def _bar(what: str) -> "Iterator[Callable[[int, int], None]]":
    """Progress bar of an operation on a terminal: done and total."""
    import sys

    from csrun.context import Progress

    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from csrun.context.terminal_bars import ProgressBars

    bars = ProgressBars()
    try:
        yield lambda done, total: bars.update(Progress(what, done, total))
    finally:
        bars.close()


def _print_json(found: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(found)))
