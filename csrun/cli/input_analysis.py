"""Steps of cs_input_analyzer: CMD measures, the analysis recommends a job, a job verifies it."""

import shlex
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from pathlib import Path

from rich.console import Console

from csrun import system
from csrun.advice import measurements
from csrun.advice.analysis import result, terminal, verification, web_page, wording
from csrun.advice.analysis.scaling import SiteFacts
from csrun.advice.analysis.solve import FeedTarget, least_nodes
from csrun.advice.measurements import DeliveredRate, Measurements
from csrun.advice.other_processes import BackgroundLoad
from csrun.base.errors import CsrunError, UsageError
from csrun.base.mode import ExecutionMode
from csrun.cli import frame
from csrun.cli.csrun_wse import PRELOAD
from csrun.context import environment
from csrun.jobs.signals import raised_as_errors
from csrun.launch import JobOptions, JobRequest, launch
from csrun.launch.command_checks import check_command, require_command
from csrun.launch.cpu_command import CpuRequest, CpuRun, prepare
from csrun.launch.user_command import UserCommand
from csrun.site import Scheduler, Site

FEED_S = 5.0  # seconds of measurement in a verification
BITS_PER_BYTE = 8


@dataclass(frozen=True)
class AnalysisRequest:
    """One cs_input_analyzer command line; None for an option that was not given.

    site: name or path by which csrun loads the site.
    site_option: name or path as given by the user.
    """

    command: tuple[str, ...]
    nodes: int | None
    target: float | None
    verify: bool
    as_json: bool
    output: Path
    mount_dirs: tuple[str, ...]
    site: str
    site_option: str | None


def analyze(request: AnalysisRequest, site: Site) -> int:
    """Measure, fit, report, and verify if requested; return the exit code, that of CMD if it fails.

    Raises: UsageError for an invalid request; CsrunError if CMD measured nothing
    """
    _check(request, site)
    cpu_request = CpuRequest(request.command, True, request.mount_dirs, request.site, JobOptions())
    ready = prepare(cpu_request, site)
    _make_folder(request.output)
    with raised_as_errors(), measurements.analysis_folder(site) as folder:
        with frame.output_to_errors() if request.as_json else nullcontext():
            if request.target is not None:
                measurements.MeasureRequest(request.target).write(folder)
            if code := _measure(ready, folder):
                return code
            analysis = _analyzed(request, site, folder)
            _keep(analysis, request)
            if request.verify:
                code, analysis = _verified(analysis, request, site, folder)
        if request.as_json:
            print(analysis.json().decode(), end="")
    return code


def _check(request: AnalysisRequest, site: Site) -> None:
    require_command(request.command, "cs_input_analyzer python-ws run.py --compile_only")
    command = UserCommand(request.command)
    if command.preparation is None:
        check_command(command)
        raise UsageError(
            f"{shlex.join(request.command)}: must only compile or validate: append --compile_only"
            " or --validate_only"
        )
    if command.num_wgt_servers(None) > 1:
        raise UsageError(
            "--num_wgt_servers does not affect the input: drop it, and add one single-task node to"
            " the result for each further MemoryX task"
        )
    if request.target is not None and not 0 < request.target < inf:
        raise UsageError(f"--target: must be a positive number, got {request.target:g}")
    if request.nodes is not None and request.nodes > site.nodes.count:
        raise UsageError(
            f"--available-nodes must be at most {site.nodes.count}, the nodes of site {site.name},"
            f" got {request.nodes}: use --available-nodes {site.nodes.count}"
        )
    _check_nodes(request, site, command.mode is ExecutionMode.WEIGHT_STREAMING)


def _check_nodes(request: AnalysisRequest, site: Site, streaming: bool) -> None:
    nodes, least = request.nodes or site.nodes.count, least_nodes(streaming)
    if nodes < least:
        raise UsageError(
            f"--available-nodes must be at least {least} for {request.command[0]} (chief, MemoryX"
            f" and one node of streamers), got {nodes}: use --available-nodes {least}"
        )


def _make_folder(output: Path) -> None:
    """Create the folder before the measurement, so that a failure cannot lose its results."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output: {output}: cannot be created: {error.strerror}: choose another"
        ) from error


def _measure(ready: CpuRun, folder: Path) -> int:
    """Run CMD; return its exit code."""
    if ready.unset:
        _print_line(f"unset for CMD: {', '.join(ready.unset)}")
    print(f"Running: {shlex.join(ready.request.command)}", flush=True)
    code = ready.with_folder(folder, environment.ANALYSIS_DIR).run()
    if code:
        _print_line(f"CMD ended with exit code {code}: no analysis")
    return code


def _analyzed(request: AnalysisRequest, site: Site, folder: Path) -> result.Analysis:
    measured = _measurements(request, folder)
    _check_nodes(request, site, measured.streaming)
    command = UserCommand(request.command).prepared_run().argv
    facts = _facts(request, site, measured)
    analysis = result.analyze(
        measured, facts, _target(request, site, measured), command, _options(request)
    )
    terminal.show(analysis, Console(highlight=False, markup=False))
    return analysis


def _measurements(request: AnalysisRequest, folder: Path) -> Measurements:
    command = shlex.join(request.command)
    measured = Measurements.read(folder)
    if measured is None:
        raise CsrunError(
            f"{command}: no measurements found: run a script with python, python-pt or python-ws"
            " that calls compile or validate of a CerebrasEstimator, or csrun.params.run, or opens"
            " a cerebras_torch Session"
        )
    if not measured.points or min(point.samples_per_s for point in measured.points) <= 0:
        raise CsrunError(f"{command}: its input pipeline delivered no samples")
    return measured


def _facts(request: AnalysisRequest, site: Site, measured: Measurements) -> SiteFacts:
    mode = ExecutionMode.WEIGHT_STREAMING if measured.streaming else ExecutionMode.PIPELINED
    target = system.find_for_compile(site, UserCommand(request.command).system, mode)
    return SiteFacts(
        name=site.name,
        nodes=request.nodes or site.nodes.count,
        node_cpus=site.nodes.cpus,
        one_machine=site.scheduler is Scheduler.LOCAL,
        link_bytes_per_s=target.io_gbit_per_s * 1e9 / BITS_PER_BYTE,
    )


def _target(request: AnalysisRequest, site: Site, measured: Measurements) -> FeedTarget:
    if request.target is not None:
        return FeedTarget(request.target, "given with --target")
    if site.scheduler is Scheduler.LOCAL and measured.wafer_samples_per_s:
        others = wording.background_clause(measured.beside_wafer)
        source = f"measured: the wafer of this machine{others}"
        return FeedTarget(measured.wafer_samples_per_s, source, spread=measured.wafer_spread)
    if measured.estimated_samples_per_s > 0:
        return FeedTarget(measured.estimated_samples_per_s, "the compile's estimate of the system")
    raise CsrunError(
        f"{shlex.join(request.command)}: no estimate of the input rate: pass --target, or"
        " --compile_only instead of --validate_only"
    )


def _options(request: AnalysisRequest) -> tuple[str, ...]:
    """Return the csrun_wse options besides the layout."""
    site = ("--site", request.site_option) if request.site_option else ()
    return (*site, *(("--mount-dirs", ",".join(request.mount_dirs)) if request.mount_dirs else ()))


def _keep(analysis: result.Analysis, request: AnalysisRequest) -> None:
    try:
        paths = [analysis.write(request.output), web_page.write(analysis, request.output)]
    except OSError as error:
        raise CsrunError(
            f"--output: {request.output}: cannot be written: {error.strerror}"
        ) from error
    print(f"\nWritten: {', '.join(map(str, paths))}", flush=True)


def _verified(
    analysis: result.Analysis, request: AnalysisRequest, site: Site, folder: Path
) -> tuple[int, result.Analysis]:
    """Run the layout, or a part of it, without the wafer; return the job's exit code, and the
    result.
    """
    layout, whole = verification.runnable(analysis), analysis.solution.layout
    if layout != whole:
        print(
            f"Verifying {layout.streamers} of the {whole.streamers} streamers, the most that fit"
            f" this machine: --total-nodes {layout.nodes} --tasks-per-node {layout.tasks_per_node}"
        )
    measurements.FeedRequest(FEED_S).write(folder)
    job = JobRequest(
        command=analysis.command,
        total_nodes=layout.nodes,
        tasks_per_node=layout.tasks_per_node,
        cpus_per_task=layout.cpus_per_task,
        mount_dirs=(*request.mount_dirs, str(folder)),
        site=request.site,
        preload=PRELOAD,
    )
    others = BackgroundLoad()
    with environment.adopted(environment.ANALYSIS_DIR, str(folder)):
        code = launch(job, site, lambda: print(f"Verifying: {shlex.join(job.command)}", flush=True))
    if code:
        return code, analysis
    analysis = verification.verified(analysis, layout, _fed(analysis, folder), others.use())
    terminal.show_verified(analysis, Console(highlight=False, markup=False))
    _keep(analysis, request)
    return 0, analysis


def _fed(analysis: result.Analysis, folder: Path) -> DeliveredRate:
    fed = DeliveredRate.read(folder)
    if fed is None:
        raise CsrunError(f"{shlex.join(analysis.command)}: its streamers reported no rates")
    if fed.samples_per_s <= 0:
        raise CsrunError(
            f"{shlex.join(analysis.command)}: its streamers delivered no samples, or their data"
            " ended before they were measured"
        )
    return fed


def _print_line(text: str) -> None:
    print(f"cs_input_analyzer: {text}", file=sys.stderr, flush=True)
