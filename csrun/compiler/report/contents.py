"""Contents of compile_report.html, from a plan and its passes; `page/` has the layout."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from csrun.base.html_pages import page
from csrun.base.mode import ExecutionMode
from csrun.compiler.passes import Stage
from csrun.compiler.report.drawings import (
    ENLARGED_HEIGHT,
    Drawing,
    GroupStream,
    LayerBox,
    around,
    draw,
    stream_of,
)
from csrun.compiler.report.limit import Limit
from csrun.compiler.report.number_format import count, percent, si
from csrun.compiler.report.repeated_blocks import Fold, folded
from csrun.executable import Group, Layer, LayerEstimate, Plan, Rectangle, Region
from csrun.executable.plan import PREFETCH_BYTES
from csrun.site.site import System

MISSING = "-"
COLOURS = 8  # the same as in page.css


@dataclass(frozen=True)
class GeneratedKernel:
    """A kernel generated for operators without a library kernel."""

    name: str
    layer: str
    operators: tuple[str, ...]


@dataclass(frozen=True)
class LayerRow:
    """A layer with its placement and estimate. index: from 1, in plan order.

    pes: of all replicas; None if the layer has no place.
    """

    index: int
    layer: Layer
    pes: int | None
    estimate: LayerEstimate | None

    @property
    def nbytes(self) -> int:
        """Bytes of memory: weights, and activations of a minibatch."""
        return self.layer.weight_bytes + self.layer.activation_bytes


@dataclass(frozen=True)
class Column:
    """Column of the layers' table: sort key (None: empty cell), and displayed text."""

    title: str
    value: Callable[[LayerRow], Any]
    read: Callable[[Any], str] = str
    style: str = "number"  # a class of page.css, or none
    adds_up: bool = False  # over the layers of a block

    def text(self, row: LayerRow) -> str:
        value = self.value(row)
        return MISSING if value is None else self.read(value)

    def sum(self, rows: Sequence[LayerRow]) -> str:
        """Return the entry for a block."""
        return self.read(sum(self.value(row) or 0 for row in rows)) if self.adds_up else ""


def arithmetic_text(plan: Plan) -> str:
    """Return the types of arithmetic and of stored values."""
    if plan.storage is None:
        return plan.precision
    return f"{plan.precision}, stored in 16 bits: {plan.storage.text}"


@dataclass(frozen=True)
class Report:
    """The whole page; kernels, program: texts of kernels.txt and program.py."""

    plan: Plan
    system: System
    stages: tuple[Stage, ...]
    kernels: str
    program: str
    generated: tuple[GeneratedKernel, ...] = ()

    @property
    def facts(self) -> dict[str, str]:
        """Facts about the compiled model and its target."""
        plan, system = self.plan, self.system
        share = plan.batch_size // plan.systems
        facts = {
            "Checksum": plan.checksum,
            "Mode": f"{_MODES[plan.mode]}, {plan.run_mode}",
            "System": f"{system.name}, fabric {system.fabric_width} x {system.fabric_height}, "
            f"{system.usable_cores:,} usable PEs",
            "Batch size": f"{plan.batch_size:,}",
            "Replicas": str(plan.replicas),
            "Micro-batches": f"{plan.micro_batches} of {share // plan.micro_batches:,}",
            "Minibatches in flight": str(plan.minibatches_in_flight),
            "Precision": arithmetic_text(plan),
            "Rates": self.limit.rates,
            "Wafer memory": f"{si(plan.arena_bytes, 'B')} of {si(system.sram_bytes, 'B')}",
        }
        if plan.systems > 1:
            facts["CS systems"] = f"{plan.systems}, each with {share:,} samples of the batch"
        if not plan.store_in_arena:
            facts["MemoryX memory"] = si(plan.store.nbytes, "B")
        return {**facts, "Compiler": f"csrun {plan.compiler_version}"}

    @property
    def expected(self) -> dict[str, str]:
        """Estimate of the whole model."""
        estimate = self.plan.estimate
        return {
            "Samples/s": count(estimate.samples_per_sec),
            "Compute samples/s": count(estimate.compute_samples_per_sec),
            "Transmission samples/s": count(estimate.transmission_samples_per_sec),
            "Active PEs": percent(estimate.active_pes),
            "Compute utilization": percent(estimate.compute_utilization),
        }

    @cached_property
    def rows(self) -> tuple[LayerRow, ...]:
        """The layers, in plan order."""
        pes = Counter[str]()
        for region in self.plan.floor_plan:
            pes[region.layer] += region.rectangle.pes
        estimates = {estimate.layer: estimate for estimate in self.plan.estimate.layers}
        return tuple(
            LayerRow(index, layer, pes.get(layer.name), estimates.get(layer.name))
            for index, layer in enumerate(self.plan.layers, 1)
        )

    @cached_property
    def layers(self) -> tuple[Fold[LayerRow], ...]:
        """The rows, folded by block."""
        return folded(self.rows, lambda row: (row.layer.name,))

    @cached_property
    def groups(self) -> tuple[Fold[Group], ...]:
        """The groups of weights, folded by block."""
        return folded(self.plan.groups, lambda group: group.layers)

    @cached_property
    def largest_nbytes(self) -> int:
        """Memory of the longest bar, a layer's or a block's; 1 if all are empty."""
        sums = [
            sum(row.nbytes for row in fold.members)
            if fold.name
            else max((row.nbytes for row in fold.members), default=0)
            for fold in self.layers
        ]
        return max(sums) or 1

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of the layers' table that are not empty."""
        side_by_side = self.plan.mode is ExecutionMode.PIPELINED
        cores = self.system.usable_cores
        placed = (
            Column("PEs", lambda row: row.pes, count, adds_up=side_by_side),
            Column("Share", lambda row: row.pes and row.pes / cores, percent, adds_up=side_by_side),
        )
        everything = (*_LAYER, *placed, *_ESTIMATE, *_SIZES)
        return tuple(c for c in everything if any(c.value(row) is not None for row in self.rows))

    @property
    def kinds(self) -> dict[str, int]:
        """Color index of each kind of kernel."""
        kinds = dict.fromkeys(layer.kernel for layer in self.plan.layers)
        return {kind: index % COLOURS for index, kind in enumerate(kinds)}

    @property
    def limit(self) -> Limit:
        """Limit of the model's rate."""
        return Limit.of(self.plan, self.system)

    @property
    def stream(self) -> GroupStream | None:
        """Timeline of the groups of weights; None if the weights stay on the wafer."""
        streaming = self.plan.is_streaming
        return stream_of(self.plan) if streaming else None

    @property
    def drawings(self) -> tuple[Drawing, ...]:
        """Floor plan of a pipeline; of several replicas, one of them enlarged as well."""
        if self.stream is not None or not self.plan.floor_plan:
            return ()
        fabric = Rectangle(0, 0, self.system.fabric_width, self.system.fabric_height)
        # of several replicas, a name next to each would be repeated too often
        alone = self.plan.replicas == 1
        whole = draw("The fabric, to scale", self._spots(), fabric, beside=alone)
        if alone:
            return (whole,)
        first = self._spots(replica=0)
        title = f"Replica 1 of {self.plan.replicas}, enlarged"
        part = around([spot.rectangle for spot in first])
        return draw(title, first, part, height=ENLARGED_HEIGHT), whole

    @property
    def prefetch_bytes(self) -> int:
        """Size from which a group is prefetched."""
        return PREFETCH_BYTES

    def indices(self, group: Group) -> list[int]:
        """Return the row numbers of a group."""
        return [self._index_of[layer] for layer in group.layers]

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {row.layer.name: row.index for row in self.rows}

    def _spots(self, replica: int | None = None) -> tuple[LayerBox, ...]:
        """Return the layers of one replica, or of all."""
        rows = {row.layer.name: row for row in self.rows}
        return tuple(
            self._spot(region, rows[region.layer])
            for region in self.plan.floor_plan
            if replica in (None, region.replica)
        )

    def _spot(self, region: Region, row: LayerRow) -> LayerBox:
        replicas, pes = self.plan.replicas, region.rectangle.pes
        which = f", replica {region.replica + 1} of {replicas}" if replicas > 1 else ""
        share = percent(pes / self.system.usable_cores)
        caption = f"{region.layer}{which}: {pes:,} PEs, {share} of the usable PEs"
        names = (region.layer, str(row.index))
        return LayerBox(row.index, row.layer.kernel, region.rectangle, caption, names)


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
        adds_up=True,
    ),
    Column("Weights", lambda row: row.layer.weight_bytes, _bytes, adds_up=True),
    Column("Activations", lambda row: row.layer.activation_bytes, _bytes, adds_up=True),
)


HTML_FILE = "compile_report.html"
PAGE = Path(__file__).with_name("page")


def render(report: Report) -> str:
    return page(PAGE, {"si": si, "count": count}, report=report)
