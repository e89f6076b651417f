"""Drawings of the report: floor plan of a pipeline, and timeline of streamed groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from csrun.executable import Group, Plan, Rectangle, Visit
from csrun.executable.plan import PREFETCH_BYTES
from csrun.executable.prefetch_schedule import prefetch_points, slots_overlap

# A floor plan is drawn in units of its label height: with 36 units across, a drawing of 432 px, the
# minimum in page.css, has letters of 12 px.
WIDTH = 36.0
ENLARGED_HEIGHT = 24.0
GLYPH_WIDTH = 0.6  # width of an average letter
LINE_HEIGHT = 1.2
EDGE = 0.8  # from a line's middle to the border of the drawing
GAP = 0.7  # between the fabric and the labels next to it
MOST_BESIDE = 12  # labels; more do not help, and each rectangle shows its name on hover
LONGEST_BESIDE = 22  # letters; of a longer name the end is shown, which is more specific


@dataclass(frozen=True)
class Area:
    """A rectangle of a drawing, in its units."""

    x: float
    y: float
    width: float
    height: float

    @property
    def end(self) -> tuple[float, float]:
        """Middle of its right side."""
        return self.x + self.width, self.y + self.height / 2

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


@dataclass(frozen=True)
class Label:
    """Text in its rectangle, rotated if it only fits vertically, or `beside` the fabric."""

    text: str
    x: float
    y: float
    is_rotated: bool = False
    beside: bool = False


@dataclass(frozen=True)
class LayerBox:
    """A layer's rectangle to draw; names: possible labels, best first."""

    index: int
    kernel: str
    rectangle: Rectangle
    caption: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class DrawnRegion:
    """A drawn rectangle."""

    spot: LayerBox
    area: Area
    label: Label | None


@dataclass(frozen=True)
class Drawing:
    """Floor plan, or one replica of it, in units of a label's height; `width`: total width."""

    title: str
    fabric: Area
    places: tuple[DrawnRegion, ...]
    width: float = WIDTH


def around(rectangles: Sequence[Rectangle]) -> Rectangle:
    """Return the smallest rectangle that contains these."""
    x, y = min(r.x for r in rectangles), min(r.y for r in rectangles)
    right, bottom = max(r.x + r.width for r in rectangles), max(r.y + r.height for r in rectangles)
    return Rectangle(x, y, right - x, bottom - y)


def draw(
    title: str,
    spots: Sequence[LayerBox],
    part: Rectangle,
    height: float | None = None,
    beside: bool = True,
) -> Drawing:
    """Draw a part of the fabric to scale, or stretched to a height.

    With `beside`, a name that does not fit is written next to the fabric, unless there are too
    many.
    """
    width = WIDTH
    while True:  # labels next to it reduce the width, so that fewer fit inside
        areas = {spot: _scaled(spot.rectangle, part, height, width) for spot in spots}
        small = [spot for spot, area in areas.items() if _inside(spot, area) is None]
        if not beside or len(small) > MOST_BESIDE:
            areas = {spot: _scaled(spot.rectangle, part, height) for spot in spots}
            small, width = [], WIDTH
        lengths = [_length(_shortened(spot.names[0])) for spot in small]
        left = WIDTH - (GAP + max(lengths) if lengths else 0.0)
        if left >= width:
            break
        width = left
    fabric = _scaled(part, part, height, width)
    labels = _outside(small, areas, fabric)
    places = [DrawnRegion(s, area, labels.get(s) or _inside(s, area)) for s, area in areas.items()]
    return Drawing(title, fabric, tuple(places))


def _scaled(
    rectangle: Rectangle, part: Rectangle, height: float | None, width: float = WIDTH
) -> Area:
    """Scale a rectangle to a drawing of `width` by `height`."""
    across = width / part.width
    down = across if height is None else height / part.height
    return Area(
        (rectangle.x - part.x) * across,
        (rectangle.y - part.y) * down,
        rectangle.width * across,
        rectangle.height * down,
    )


def _inside(spot: LayerBox, area: Area) -> Label | None:
    for text in spot.names:
        if _length(text) <= area.width and area.height >= LINE_HEIGHT:
            return Label(text, *area.middle)
        if _length(text) <= area.height and area.width >= LINE_HEIGHT:
            return Label(text, *area.middle, is_rotated=True)
    return None


def _length(text: str) -> float:
    """Return the length of a text with some margin."""
    return GLYPH_WIDTH * (len(text) + 1)


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_BESIDE else f"…{name[1 - LONGEST_BESIDE :]}"


def _outside(
    small: Sequence[LayerBox], areas: Mapping[LayerBox, Area], fabric: Area
) -> dict[LayerBox, Label]:
    """Place labels of small rectangles at their height, or as near as the others allow."""
    small = sorted(small, key=lambda spot: areas[spot].end[1])
    rows: list[float] = []
    for spot in small:
        rows.append(max(areas[spot].end[1], rows[-1] + LINE_HEIGHT if rows else EDGE))
    last = fabric.height - EDGE
    for index in reversed(range(len(rows))):
        rows[index] = min(rows[index], last)
        last = rows[index] - LINE_HEIGHT
    return {
        spot: Label(_shortened(spot.names[0]), fabric.width + GAP, y, beside=True)
        for spot, y in zip(small, rows, strict=True)
    }


class WeightState(StrEnum):
    """State of a group's weights when they are needed."""

    KEPT = "still resident"
    AHEAD = "fetched ahead"
    IN_TURN = "fetched on demand"


@dataclass(frozen=True)
class GroupStop:
    """A group's part in one of a step's visits.

    ahead: number of stops before it at which the transfer began.
    """

    function: str
    group: int
    arrival: WeightState
    ahead: int = 0


def stops(groups: Sequence[Group], visits: Sequence[Visit]) -> tuple[GroupStop, ...]:
    """Simulate the wafer's weight slots during a step after the first one."""
    following = prefetch_points(groups, [visit.groups for visit in visits], PREFETCH_BYTES)
    held: frozenset[int] = frozenset()
    found: list[GroupStop] = []

    def under(group: int) -> frozenset[int]:
        return frozenset(other for other in held if slots_overlap(groups[group], groups[other]))

    for _ in range(2):
        found.clear()
        coming: dict[int, int] = {}
        for visit, ahead in zip(visits, following, strict=True):
            for group in visit.groups:
                found.append(_stop(visit, group, held, len(found) - coming.pop(group, len(found))))
                held = held - under(group) | {group}
            held -= {*visit.completes}
            for group in ahead:
                if group not in held:
                    coming[group] = len(found) - 1
                    held -= under(group)
    return tuple(found)


def _stop(visit: Visit, group: int, held: frozenset[int], ahead: int) -> GroupStop:
    arrival = (
        WeightState.KEPT if group in held else WeightState.AHEAD if ahead else WeightState.IN_TURN
    )
    return GroupStop(visit.function, group, arrival, ahead)


@dataclass(frozen=True)
class SlotInterval:
    """A group in the weight slots, from one stop to another; stops count from 1.

    ahead: number of stops, from `first` on, during which it is prefetched.
    lane: row of the drawing, from 0, which is free meanwhile.
    """

    group: int
    first: int
    last: int
    ahead: int
    lane: int = 0


@dataclass(frozen=True)
class GroupStream:
    """Groups of a streaming plan during a step."""

    groups: tuple[Group, ...]
    stops: tuple[GroupStop, ...]

    @cached_property
    def stays(self) -> tuple[SlotInterval, ...]:
        """Occupancy of the slots, by the visit at which a group arrives."""
        stays: list[SlotInterval] = []
        for number, stop in enumerate(self.stops, 1):
            earlier = [i for i, stay in enumerate(stays) if stay.group == stop.group]
            if stop.arrival is WeightState.KEPT and earlier:
                stays[earlier[-1]] = replace(stays[earlier[-1]], last=number)
            else:
                kept = stop.arrival is WeightState.KEPT  # since the previous step
                first = 1 if kept else number - stop.ahead
                stays.append(SlotInterval(stop.group, first, number, stop.ahead))
        return _in_lanes(stays)

    @property
    def lanes(self) -> int:
        """Number of rows that the drawing needs."""
        return 1 + max((stay.lane for stay in self.stays), default=0)

    def arrivals(self, group: Group) -> tuple[GroupStop, ...]:
        """Return the visits of a group, and its state at each."""
        return tuple(stop for stop in self.stops if stop.group == group.index)


def _in_lanes(stays: Sequence[SlotInterval]) -> tuple[SlotInterval, ...]:
    """Assign each to the first lane that is free from its first stop on."""
    free_from: list[int] = []
    found = []
    for stay in sorted(stays, key=lambda stay: stay.first):
        lane = next((n for n, stop in enumerate(free_from) if stop <= stay.first), len(free_from))
        free_from[lane : lane + 1] = [stay.last + 1]
        found.append(replace(stay, lane=lane))
    return tuple(found)


def stream_of(plan: Plan) -> GroupStream:
    """Return the groups of a plan and their order."""
    return GroupStream(plan.groups, stops(plan.groups, plan.visits))
