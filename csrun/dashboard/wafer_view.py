"""The wafer of a run: floor plan or groups of weights, from its plan, and traced steps."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from csrun.base.errors import CsrunError
from csrun.base.files import find
from csrun.compiler.report.contents import Report
from csrun.compiler.report.drawings import Area, Drawing, DrawnRegion, GroupStream
from csrun.executable import Plan, Visit
from csrun.executable.executable import PLAN_FILE
from csrun.records import trace_file
from csrun.records.model_dir import MOST_PLAN_BYTES
from csrun.records.trace_file import Process, Span
from csrun.site.site import System

MOST_STEPS_SHOWN = 20
MOST_SPANS = 2000  # spans of other tracks in a step
_STEPS = re.compile(r"steps_(\d+)_(\d+)")
_VISIT = re.compile(r"(?:micro-batch \d+, )?visit (\d+):")


class PlacedLayer(msgspec.Struct, frozen=True):
    """A layer with its estimate; pes: None if it has no place. Units: shares from 0 to 1"""

    name: str
    kernel: str
    group: int
    weight_bytes: int
    activation_bytes: int
    pes: int | None
    utilization: float | None
    samples_per_sec: float | None


class DrawnLayer(msgspec.Struct, frozen=True):
    """A rectangle of the floor plan, and the text in it, in units of a label's height."""

    layer: int
    caption: str
    area: Area
    text: str = ""
    x: float = 0.0
    y: float = 0.0
    is_rotated: bool = False


class FloorPlan(msgspec.Struct, frozen=True):
    """The fabric with its layers."""

    title: str
    fabric: Area
    layers: tuple[DrawnLayer, ...]


class StepVisit(msgspec.Struct, frozen=True):
    """A call of the program in a step: layers that compute, and the minibatch.

    resident: groups whose weights are in the slots meanwhile.
    """

    function: str
    layers: tuple[int, ...]
    minibatch: int
    resident: tuple[int, ...] = ()


class TracedSpan(msgspec.Struct, frozen=True):
    """A span of a traced step. Units: milliseconds since the start of the step"""

    process: str
    track: str
    name: str
    began_ms: float
    ended_ms: float


class TracedStep(msgspec.Struct, frozen=True):
    """A traced step; visits: times of the plan's calls, in order."""

    step: int
    visits: tuple[TracedSpan, ...]
    others: tuple[TracedSpan, ...]


class WaferView(msgspec.Struct, frozen=True):
    """The wafer of a compiled model. sent_bytes, received_bytes: by MemoryX in a step, as planned.

    trace: file name of the replayed steps; problem: why there are none.
    """

    checksum: str
    mode: str
    micro_batches: int
    minibatches: int
    arena_bytes: int
    layers: tuple[PlacedLayer, ...]
    groups: tuple[int, ...]
    plans: tuple[FloorPlan, ...]
    visits: tuple[StepVisit, ...]
    sent_bytes: int
    received_bytes: int
    trace: str = ""
    steps: tuple[TracedStep, ...] = ()
    problem: str = ""


def read_plan(compiled: Path) -> Plan:
    """Read the plan of a compile for display; its program is not executed.

    Raises: CsrunError for one of another version, or if there is none
    """
    path = compiled / PLAN_FILE
    try:
        return msgspec.json.decode(find(path, MOST_PLAN_BYTES).data, type=Plan)
    except (OSError, ValueError) as error:
        raise CsrunError(f"{path}: plan cannot be read: {error}") from error


def wafer_view(plan: Plan, system: System, traces: Sequence[Path]) -> WaferView:
    """Return the wafer of a plan, with the steps of the newest trace that matches it."""
    report = Report(plan, system, (), "", "")
    layers = tuple(
        PlacedLayer(
            row.layer.name,
            row.layer.kernel,
            row.layer.group,
            row.layer.weight_bytes,
            row.layer.activation_bytes,
            row.pes,
            None if row.estimate is None else row.estimate.compute_utilization,
            None if row.estimate is None else row.estimate.samples_per_sec,
        )
        for row in report.rows
    )
    visits = tuple(_visits(plan, report.stream))
    trace, steps, problem = _replay(plan, visits, traces)
    sent, received = _traffic(plan)
    return WaferView(
        plan.checksum,
        plan.mode,
        plan.micro_batches,
        plan.minibatches_in_flight,
        plan.arena_bytes,
        layers,
        tuple(group.nbytes for group in plan.groups),
        tuple(map(_floor_plan, report.drawings)),
        visits,
        sent,
        received,
        trace,
        steps,
        problem,
    )


def _traffic(plan: Plan) -> tuple[int, int]:
    """Return the bytes of weights sent to the wafer in a step, and of gradients returned."""
    if not plan.is_streaming:
        return 0, 0
    sent = sum(layer.weight_bytes * layer.loads for layer in plan.layers)
    completed = sum(plan.groups[group].nbytes for group in plan.deliveries)
    return sent * plan.systems, completed * plan.systems


def _floor_plan(drawing: Drawing) -> FloorPlan:
    return FloorPlan(drawing.title, drawing.fabric, tuple(map(_drawn, drawing.places)))


def _drawn(place: DrawnRegion) -> DrawnLayer:
    found = DrawnLayer(place.spot.index - 1, place.spot.caption, place.area)
    if (label := place.label) is None or label.beside:
        return found
    return msgspec.structs.replace(
        found, text=label.text, x=label.x, y=label.y, is_rotated=label.is_rotated
    )


def _visits(plan: Plan, stream: GroupStream | None) -> Iterator[StepVisit]:
    """Return the calls of a micro-batch, in order."""
    index = {layer.name: number for number, layer in enumerate(plan.layers)}

    def layers(visit: Visit) -> tuple[int, ...]:
        groups = dict.fromkeys((*visit.groups, *visit.gradients))
        return tuple(index[name] for group in groups for name in plan.groups[group].layers)

    if plan.schedule:
        for each in plan.schedule:
            visit = plan.visits[each.visit]
            yield StepVisit(visit.function, layers(visit), each.minibatch)
        return
    stop = 0
    for visit in plan.visits:
        resident: tuple[int, ...] = ()
        if stream is not None:
            first, stop = stop + 1, stop + len(visit.groups)
            stays = (s for s in stream.stays if s.first <= stop and first <= s.last)
            resident = tuple(sorted({stay.group for stay in stays})) if visit.groups else ()
        yield StepVisit(visit.function, layers(visit), 0, resident)


def _replay(
    plan: Plan, visits: Sequence[StepVisit], traces: Sequence[Path]
) -> tuple[str, tuple[TracedStep, ...], str]:
    """Return name and steps of the newest trace; or why there are none."""
    if not traces:
        return "", (), "no trace: set runconfig.trace_steps"
    path = max(traces, key=lambda each: each.stat().st_mtime_ns)
    try:
        processes = trace_file.read(path)
    except (OSError, ValueError) as error:
        return path.name, (), f"{path.name} cannot be read: {error}"
    computing = next((p for p in processes if any(s.track == "compute" for s in p.spans)), None)
    if computing is None or (steps := _STEPS.match(path.name)) is None:
        return path.name, (), f"{path.name} has no visits"
    if plan.replicas > 1:
        return path.name, (), f"{path.name} has no visits: replicas compute them concurrently"
    found = _steps(int(steps[1]), processes, computing, plan, visits)
    problem = "" if found else f"{path.name} is not of the newest compile"
    return path.name, tuple(found[:MOST_STEPS_SHOWN]), problem


def _steps(
    first: int,
    processes: Sequence[Process],
    computing: Process,
    plan: Plan,
    visits: Sequence[StepVisit],
) -> list[TracedStep]:
    """Return the steps of a trace; none if its visits are not those of the plan."""
    spans = [span for span in computing.spans if span.track == "compute"]
    order = [each.visit for each in plan.schedule] or range(len(plan.visits))
    expected = plan.micro_batches * [*order]
    if not expected or len(spans) % len(expected):
        return []
    found = []
    waits = {s.name: s.began_ns for s in computing.spans if s.track == "input wait"}
    for number in range(len(spans) // len(expected)):
        part = spans[number * len(expected) : (number + 1) * len(expected)]
        if [_visit_number(span) for span in part] != expected:
            return []
        step = first + number
        began = min(waits.get(f"step {step}", part[0].began_ns), part[0].began_ns)
        others = _others(processes, (began, part[-1].ended_ns))
        calls = tuple(_span(computing.name, span, began) for span in part)
        found.append(TracedStep(step, calls, others))
    return found


def _visit_number(span: Span) -> int | None:
    found = _VISIT.match(span.name)
    return None if found is None else int(found[1])


def _others(processes: Sequence[Process], window: tuple[int, int]) -> tuple[TracedSpan, ...]:
    """Return the spans of all processes that overlap a step."""
    began, ended = window
    found = [
        _span(process.name, span, began)
        for process in processes
        for span in process.spans
        if span.began_ns < ended and span.ended_ns > began
    ]
    return tuple(found[:MOST_SPANS])


def _span(process: str, span: Span, began_ns: int) -> TracedSpan:
    return TracedSpan(
        process,
        span.track,
        span.name,
        (span.began_ns - began_ns) / 1e6,
        (span.ended_ns - began_ns) / 1e6,
    )
