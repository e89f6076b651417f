"""What compile_report.html shows, taken from a plan and its passes; how it looks is in `page/`."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csrun.base.mode import ExecutionMode
from csrun.base.pages import page
from csrun.compiler.passes import Stage
from csrun.executable import Layer, LayerEstimate, Plan, Rectangle
from csrun.site.model import System

MISSING = "-"
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def count(value: float) -> str:
    """Whole from a hundred on, with three digits below: 479,189 or 0.0421."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """A share of 1, with four digits: 99.98% or 0.00421%."""
    return f"{100 * share:.4g}%"


def si(value: float, unit: str) -> str:
    """Three digits and a decimal prefix: 1.54 MB."""
    power = 0
    while value >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.3g} {_PREFIXES[power]}{unit}"


COLOURS = 8  # those of page.css
LABEL_HEIGHT = 1 / 36  # of the fabric's width
GLYPH_WIDTH = 0.6  # of a label's height: an average letter's


@dataclass(frozen=True)
class GeneratedKernel:
    """A kernel made for operators that the library has none for."""

    name: str
    layer: str
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A layer with what was decided and expected of it. index: from 1, in plan order.

    pes: of all replicas; None where the layer has no place.
    """

    index: int
    layer: Layer
    pes: int | None
    estimate: LayerEstimate | None

    @property
    def nbytes(self) -> int:
        """Its memory: weights, and activations of a minibatch."""
        return self.layer.weight_bytes + self.layer.activation_bytes


@dataclass(frozen=True)
class Column:
    """A column of the layers' table: what it sorts by (None: nothing there), how that reads."""

    title: str
    value: Callable[[Row], Any]
    read: Callable[[Any], str] = str
    style: str = "number"  # a class of page.css, or none

    def text(self, row: Row) -> str:
        """The cell's text."""
        value = self.value(row)
        return MISSING if value is None else self.read(value)


@dataclass(frozen=True)
class Place:
    """A rectangle of the floor plan, the layers there, and the label that fits in."""

    rectangle: Rectangle
    rows: tuple[Row, ...]
    caption: str
    label: str


@dataclass(frozen=True)
class Report:
    """The whole page. kernels, program: the texts of kernels.txt and program.py."""

    plan: Plan
    system: System
    stages: tuple[Stage, ...]
    kernels: str
    program: str
    generated: tuple[GeneratedKernel, ...] = ()

    @property
    def facts(self) -> dict[str, str]:
        """What was compiled, and for what."""
        plan, system = self.plan, self.system
        facts = {
            "Checksum": plan.checksum,
            "Mode": f"{_MODES[plan.mode]}, {plan.run_mode}",
            "System": f"{system.name}, fabric {system.fabric_width} x {system.fabric_height}, "
            f"{system.usable_cores:,} usable PEs",
            "Batch size": f"{plan.batch_size:,}",
            "Replicas": str(plan.replicas),
            "Minibatches in flight": str(plan.minibatches_in_flight),
            "Precision": plan.precision,
            "Wafer memory": f"{si(plan.arena_bytes, 'B')} of {si(system.sram_bytes, 'B')}",
        }
        if not plan.store_in_arena:
            facts["MemoryX memory"] = si(plan.store.nbytes, "B")
        return {**facts, "Compiler": f"csrun {plan.compiler_version}"}

    @property
    def expected(self) -> dict[str, str]:
        """The estimate of the whole."""
        estimate = self.plan.estimate
        return {
            "Samples/s": count(estimate.samples_per_sec),
            "Compute samples/s": count(estimate.compute_samples_per_sec),
            "Transmission samples/s": count(estimate.transmission_samples_per_sec),
            "Active PEs": percent(estimate.active_pes),
            "Compute utilization": percent(estimate.compute_utilization),
        }

    @property
    def rows(self) -> tuple[Row, ...]:
        """The layers, in plan order."""
        pes = Counter[str]()
        for region in self.plan.floor_plan:
            pes[region.layer] += region.rectangle.pes
        estimates = {estimate.layer: estimate for estimate in self.plan.estimate.layers}
        return tuple(
            Row(index, layer, pes.get(layer.name), estimates.get(layer.name))
            for index, layer in enumerate(self.plan.layers, 1)
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of the layers' table in which there is anything."""
        placed = (
            Column("PEs", lambda row: row.pes, count),
            Column("Share", lambda row: row.pes and self._share(row.pes), percent),
        )
        everything = (*_LAYER, *placed, *_ESTIMATE, *_SIZES)
        return tuple(c for c in everything if any(c.value(row) is not None for row in self.rows))

    @property
    def kinds(self) -> dict[str, int]:
        """The number of each kind of kernel's colour."""
        kinds = dict.fromkeys(layer.kernel for layer in self.plan.layers)
        return {kind: index % COLOURS for index, kind in enumerate(kinds)}

    @property
    def places(self) -> tuple[Place, ...]:
        """The floor plan; layers that take turns on the same PEs are one place."""
        rows = {row.layer.name: row for row in self.rows}
        there: dict[tuple[Rectangle, int], list[Row]] = {}
        for region in self.plan.floor_plan:
            there.setdefault((region.rectangle, region.replica), []).append(rows[region.layer])
        return tuple(self._place(*where, rows) for where, rows in there.items())

    @property
    def label_height(self) -> float:
        """Height of the floor plan's labels, in PEs."""
        return self.system.fabric_width * LABEL_HEIGHT

    def _place(self, rectangle: Rectangle, replica: int, rows: Sequence[Row]) -> Place:
        alone = len(rows) == 1
        name = rows[0].layer.name if alone else f"all {len(rows)} layers, one after the other"
        replicas = self.plan.replicas
        which = f", replica {replica + 1} of {replicas}" if replicas > 1 else ""
        share = percent(self._share(rectangle.pes))
        caption = f"{name}{which}: {rectangle.pes:,} PEs, {share} of the usable"
        labels = (name, str(rows[0].index)) if alone else (name,)
        label = next((text for text in labels if self._fits(text, rectangle)), "")
        return Place(rectangle, tuple(rows), caption, label)

    def _share(self, pes: int) -> float:
        return pes / self.system.usable_cores

    def _fits(self, text: str, rectangle: Rectangle) -> bool:
        width = (len(text) + 1) * GLYPH_WIDTH * self.label_height
        return width <= rectangle.width and 1.2 * self.label_height <= rectangle.height


_MODES = {
    ExecutionMode.PIPELINED: "layer pipelined",
    ExecutionMode.WEIGHT_STREAMING: "weight streaming",
}


def _bytes(value: float) -> str:
    return si(value, "B")


def _estimated(title: str, field: str, read: Callable[[Any], str]) -> Column:
    return Column(title, lambda row: row.estimate and getattr(row.estimate, field), read)


_LAYER = (
    Column("#", lambda row: row.index),
    Column("Layer", lambda row: row.layer.name, style="name"),
    Column("Kernel", lambda row: row.layer.kernel, style=""),
)
_ESTIMATE = (
    _estimated("Samples/s", "samples_per_sec", count),
    _estimated("Compute", "compute_samples_per_sec", count),
    _estimated("Transmission", "transmission_samples_per_sec", count),
    _estimated("Utilization", "compute_utilization", percent),
)
_SIZES = (
    Column(
        "Work",
        lambda row: row.layer.forward_flops + row.layer.backward_flops,
        lambda flops: si(flops, "FLOP"),
    ),
    Column("Weights", lambda row: row.layer.weight_bytes, _bytes),
    Column("Activations", lambda row: row.layer.activation_bytes, _bytes),
)


HTML_FILE = "compile_report.html"
PAGE = Path(__file__).with_name("page")


def render(report: Report) -> str:
    """The page's text."""
    return page(PAGE, {"si": si}, report=report)
