"""csrun estimate: estimates memory, disk and time of a run in advance."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from csrun.cli import frame, tables

if TYPE_CHECKING:
    from csrun.launch.cpu_command import CpuRun
    from csrun.records.run_estimate import RunEstimate
    from csrun.site import Site

BUSY_SPREAD = 0.25  # of a step's time, above which other processes have disturbed it
SETTINGS = frame.SETTINGS | {"ignore_unknown_options": True}


@click.command("estimate", context_settings=SETTINGS)
@click.option(
    "--streamers",
    type=frame.WholeNumber(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Streaming tasks of the job.",
)
@click.option("--mount-dirs", metavar="A,B", default="", help="Folders that CMD needs to see.")
@frame.the_site
@frame.in_format
@frame.the_command
def estimate(
    command: tuple[str, ...], streamers: int, mount_dirs: str, site: str | None, output: str
) -> int:
    """Estimate time, memory and disk of a run: CMD is a training with --compile_only.

    CMD compiles; memory and disk follow from the plan, and the time of a step is measured on this
    machine. The estimate is stored in the compile directory, and the run reports deviations.
    """
    from csrun.jobs.request import JobOptions
    from csrun.launch.cpu_command import CpuRequest, prepare
    from csrun.site import load, resolve

    known = load(site)
    _require_preparation(command)
    folders = frame.split(mount_dirs)
    ready = prepare(CpuRequest(command, True, folders, resolve(site), JobOptions()), known)
    with frame.output_to_errors() if output == "json" else nullcontext():
        code, found = _estimated(ready, known, streamers)
    if found is None:
        return code
    if output == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found)))
    else:
        tables.show(("what", "estimate"), rows(found), is_wrapped=True)
    return 0


def _require_preparation(command: tuple[str, ...]) -> None:
    from csrun.base.errors import UsageError
    from csrun.launch.command_checks import check_command, require_command
    from csrun.launch.user_command import UserCommand

    require_command(command, "csrun estimate python-ws run.py --compile_only")
    if UserCommand(command).preparation is None:
        check_command(UserCommand(command))
        raise UsageError(f"{shlex.join(command)}: must only compile: append --compile_only")


def _estimated(ready: "CpuRun", site: "Site", streamers: int) -> "tuple[int, RunEstimate | None]":
    """Run CMD; return its exit code, and the estimate that it wrote.

    Raises: CsrunError if it wrote none
    """
    from csrun.advice.measurements import EstimateRequest, analysis_folder
    from csrun.base.errors import CsrunError
    from csrun.context import environment
    from csrun.jobs.signals import raised_as_errors
    from csrun.records.run_estimate import RunEstimate

    with raised_as_errors(), analysis_folder(site) as folder:
        EstimateRequest(streamers).write(folder)
        if code := ready.with_folder(folder, environment.ANALYSIS_DIR).run():
            return code, None
        found = RunEstimate.read(folder)
    if found is None:
        raise CsrunError(
            f"{shlex.join(ready.request.command)}: compiled nothing: run a script with python, "
            "python-pt or python-ws that calls compile of a CerebrasEstimator, or "
            "csrun.params.run, or opens a cerebras_torch Session"
        )
    return 0, found


def rows(found: "RunEstimate") -> Iterator[tuple[str, str]]:
    """Yield the rows of the table."""
    from csrun.base.sizes import size_text

    yield "model", f"{found.parameters:,} parameters in {found.layers} layers"
    yield "run", f"{found.mode}, batches of {found.batch_size:,}{_on(found.systems)}"
    used = sum(found.wafer.values())
    share = f"{size_text(used)} of {size_text(found.sram_bytes)}"
    yield "wafer memory", f"{share}: {_kinds(found.wafer)}"
    yield "largest batch", _largest(found)
    yield "needs at least", _smallest(found)
    yield "state", f"{size_text(sum(found.store.values()))}: {_kinds(found.store)}"
    if found.store_on_disk is not None:
        yield "MemoryX", f"on disk, {size_text(found.store_on_disk)} of it in memory"
    free = f"{size_text(found.host_bytes)} of {size_text(found.host_available_bytes)} free"
    fits = found.host_bytes <= found.host_available_bytes
    yield "memory here", free if fits else f"{free}: too little; lower batch_size"
    for each in found.host:
        several = f"{each.tasks} x " if each.tasks > 1 else ""
        yield f"  {each.role}", f"{several}{size_text(each.nbytes)}: {each.holds}"
    if found.checkpoint_bytes:
        took = "" if found.checkpoint_s is None else f", {_time(found.checkpoint_s)}"
        yield "checkpoint", f"{size_text(found.checkpoint_bytes)}{took}"
    yield "step here", _step_here(found)
    yield "products here", _products(found)
    yield "step on a CS-2", _step(found.system_step_s, found.system_samples_per_s)
    if found.max_steps is not None:
        here, there = (_time(found.max_steps * s) for s in (found.step_s, found.system_step_s))
        yield f"{found.max_steps:,} steps", f"{here} here, {there} on a CS-2"
    yield "limit", found.limits
    yield "CS-2's rates", found.system_rates


def _on(systems: int) -> str:
    return f" on {systems} systems" if systems > 1 else ""


def _kinds(kinds: Mapping[str, int]) -> str:
    from csrun.base.sizes import size_text

    return ", ".join(f"{kind} {size_text(nbytes)}" for kind, nbytes in kinds.items())


def _smallest(found: "RunEstimate") -> str:
    from csrun.base.sizes import size_text

    each = f"{found.systems} wafers" if found.systems > 1 else "a wafer"
    return f"{each} of {size_text(found.least_sram_bytes)}, a host of {found.host_gib} GiB"


def _largest(found: "RunEstimate") -> str:
    if found.largest_batch is None:
        return "any"
    return f"{found.largest_batch:,} samples at once; of a larger one, micro-batches"


def _step_here(found: "RunEstimate") -> str:
    how = "computed: the memory for a step is not free here"
    if found.is_measured:
        how = f"measured, ± {found.step_spread:.0%}" if found.step_spread else "measured"
        if found.step_spread and found.step_spread > BUSY_SPREAD:
            how += ": repeat it on an idle machine"
    if found.is_cpu_bound:
        cpu_time = f"{_time(found.step_cpu_s)} of CPU time, on {found.cpus} CPUs"
        how += f"; limited by the CPUs: all tasks need {cpu_time}"
    return f"{_step(found.step_s, found.batch_size / found.step_s)} ({how})"


def _products(found: "RunEstimate") -> str:
    from csrun.compiler.report.number_format import si
    from csrun.executable.bfloat16 import TITLES

    names: dict[str, str] = {form: f"bfloat16 by {title}" for form, title in TITLES.items()}
    return ", ".join(
        f"{each.share:.0%} of the FLOPs in {names.get(each.products, 'float32')} at "
        f"{si(each.flops_per_s, 'FLOP/s')}"
        for each in found.products
    )


def _step(seconds: float, samples_per_s: float) -> str:
    from csrun.compiler.report.number_format import count

    return f"{_time(seconds)}, {count(samples_per_s)} samples/s"


def _time(seconds: float) -> str:
    from csrun.jobs.time_limit import format_duration

    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(seconds)
