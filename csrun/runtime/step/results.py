"""Results of a wafer step by step, and host-side metrics.

Losses and outputs are in slots of one block of memory. The user's host_call gets the outputs, and
its metrics are merged over steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, nan
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from csrun.base.errors import CsrunError
from csrun.executable import (
    ALIGNMENT_BYTES,
    MOST_STEPS,
    Buffer,
    Combine,
    Output,
    Plan,
    aligned,
    nbytes_of,
    view,
)
from csrun.executable.arrays import Array, Bytes
from csrun.records.events import EventWriter
from csrun.runtime.wire.messages import Results

RESULT_BYTES = 64 << 20  # total bytes of slots; large outputs have fewer slots


@dataclass(frozen=True)
class StepResult:
    """Result of one step on the host: its valid samples, and the sum of the loss over `count`.

    outputs: as computed by the model; those with samples are cut to the valid ones.
    specs: have the axis of samples of each output.
    """

    step: int
    rows: int
    loss_sum: float
    count: int
    outputs: dict[str, Array]
    specs: tuple[Output, ...]

    @property
    def loss(self) -> float:
        """Mean loss; NaN if nothing counts."""
        return self.loss_sum / self.count if self.count else nan

    def of_sample(self, number: int) -> dict[str, Any]:
        """Return the outputs of one valid sample.

        Shapes: without the axis of samples; with an axis of rows if a sample has several
        """
        return {spec.name: _of_sample(self.outputs[spec.name], spec, number) for spec in self.specs}


class ResultSlots:
    """Result slots in memory: a header float64[3] = (sum of the loss, its count, rows), then all
    outputs.

    An output has one array per minibatch, in order.
    """

    def __init__(self, plan: Plan, memory: Bytes) -> None:
        self._plan = plan
        self._headers: list[npt.NDArray[np.float64]] = []
        self._arrays: list[list[Array]] = []
        slot_bytes = result_slot_bytes(plan)
        for offset in range(0, len(memory) - slot_bytes + 1, slot_bytes):
            self._headers.append(memory[offset : offset + 24].view(np.float64))
            offset += ALIGNMENT_BYTES
            arrays = []
            for buffer in _output_buffers(plan):
                shape = plan.minibatches, *buffer.shape
                arrays.append(view(memory, offset, shape, buffer.dtype))
                offset += aligned(arrays[-1].nbytes)
            self._arrays.append(arrays)

    def record(self, slot: int, loss_sum: float, count: int, rows: int) -> None:
        header = self._headers[slot]
        # Number by number: NumPy would make an array of a tuple first.
        header[0], header[1], header[2] = loss_sum, count, rows

    def record_outputs(self, slot: int, outputs: Sequence[Sequence[Array]]) -> None:
        """Store one step's outputs: the arrays of each minibatch, for each output."""
        for kept, parts in zip(self._arrays[slot], outputs, strict=True):
            for minibatch, part in enumerate(parts):
                kept[minibatch, ...] = part

    def losses(self, count: int) -> list[float]:
        """Return the losses of the first steps, without outputs."""
        return SystemsResults(self._plan, [self]).losses(count)

    def read(self, slot: int, step: int) -> StepResult:
        """Return a copy of one step's results, with one value per output over all minibatches."""
        return SystemsResults(self._plan, [self]).read(slot, step)

    def header(self, slot: int) -> list[float]:
        """Header of one step: sum of the loss, its count, and rows."""
        found: list[float] = self._headers[slot].tolist()
        return found

    def arrays(self, slot: int) -> list[Array]:
        """One step's outputs: for each the arrays of its minibatches.

        Shapes: each [minibatches, ...]
        """
        return self._arrays[slot]


@dataclass(frozen=True)
class SystemsResults:
    """Merged results of the wafers of all systems, in the systems' order.

    The loss is the sum of its parts in that order; outputs are combined like those of minibatches.
    """

    plan: Plan
    systems: Sequence[ResultSlots]

    def losses(self, count: int) -> list[float]:
        """Return the losses of the first steps, without outputs."""
        headers = (self._header(slot) for slot in range(count))
        return [loss_sum / counted if counted else nan for loss_sum, counted, _ in headers]

    def _header(self, slot: int) -> tuple[float, float, float]:
        """Header with counts and row numbers, which every system has for the full batch."""
        headers = [system.header(slot) for system in self.systems]
        _, count, rows = headers[0]
        return sum(header[0] for header in headers), count, rows

    def read(self, slot: int, step: int) -> StepResult:
        """Return a copy of one step's results, with one value per output over all minibatches."""
        loss_sum, count, rows = self._header(slot)
        outputs = {}
        arrays = zip(*(system.arrays(slot) for system in self.systems), strict=True)
        for output, of_systems in zip(self.plan.outputs, arrays, strict=True):
            parts = np.concatenate(of_systems) if len(of_systems) > 1 else of_systems[0]
            if output.combine is Combine.SAMPLES:
                outputs[output.name] = _of_samples([*parts], output, slice(0, int(rows)))
            elif output.combine is Combine.SUM:
                outputs[output.name] = np.asarray(parts.sum(axis=0, dtype=parts.dtype))
            else:
                outputs[output.name] = np.array(parts[0])
        return StepResult(step, int(rows), loss_sum, int(count), outputs, self.plan.outputs)


def _of_samples(parts: Sequence[Array], spec: Output, samples: slice) -> Array:
    """Return the rows of these samples, from an output's parts in order.

    Shapes: each [..., outer B rows, ...]
    """
    before, after = parts[0].shape[: spec.axis], parts[0].shape[spec.axis + 1 :]
    split = [part.reshape(*before, spec.outer, -1, spec.rows, *after) for part in parts]
    wanted = (*(slice(None) for _ in before), slice(None), samples)
    found = np.concatenate(split, axis=spec.axis + 1)[wanted]
    rows = spec.outer * found.shape[spec.axis + 1] * spec.rows
    return found.reshape(*before, rows, *after)


def _of_sample(values: Array, spec: Output, number: int) -> Any:
    if spec.combine is not Combine.SAMPLES:
        return values
    rows = _of_samples([values], spec, slice(number, number + 1))
    return rows.take(0, spec.axis) if spec.outer == spec.rows == 1 else rows


def result_slot_bytes(plan: Plan) -> int:
    count = plan.minibatches
    sizes = (nbytes_of(buffer.shape, buffer.dtype) for buffer in _output_buffers(plan))
    return ALIGNMENT_BYTES + sum(aligned(count * nbytes) for nbytes in sizes)


def result_slots(plan: Plan) -> int:
    """Return the number of result slots of a run, the maximum number of steps of an order."""
    return max(1, min(MOST_STEPS, RESULT_BYTES // result_slot_bytes(plan)))


def _output_buffers(plan: Plan) -> list[Buffer]:
    buffers = {b.name: b for b in plan.buffers}
    return [buffers[output.buffer] for output in plan.outputs]


@dataclass(frozen=True)
class Mean:
    """Mean as total and count, so that parts can be added."""

    total: float = 0.0
    count: float = 0

    def __add__(self, other: "Mean") -> Self:
        """Return the mean over both parts."""
        return type(self)(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """Total over count; NaN if nothing was counted."""
        return self.total / self.count if self.count else float("nan")


class ExponentialMean(Mean):
    """Exponential of a mean over all parts."""

    @property
    def value(self) -> float:
        """The value; infinity if it overflows."""
        try:
            return exp(super().value)
        except OverflowError:
            return inf


@dataclass
class HostCall:
    """The user's function of named outputs, and its metrics so far.

    A metric is an object with `total` and `count`, such as those of `csrun.nn.metrics`, or a
    number, which is weighted by the number of valid rows.
    """

    function: Callable[..., Mapping[str, Any]]
    outputs: tuple[str, ...]
    means: dict[str, Mean] = field(default_factory=dict)

    def take(self, result: StepResult) -> None:
        """Call the function with one step's outputs.

        Raises: CsrunError if it does not return a mapping of metrics
        """
        metrics = self.function(*(result.outputs[name] for name in self.outputs))
        if not isinstance(metrics, Mapping):
            raise CsrunError(
                "host_call's function must return a mapping of metrics by name, "
                f"got {type(metrics).__name__}"
            )
        for name, metric in metrics.items():
            mean = _mean_of(metric, result.rows)
            self.means[name] = mean + self.means.get(name, Mean())

    def values(self) -> Results:
        """Return the metrics over all steps so far, and reset."""
        values = {name: mean.value for name, mean in self.means.items()}
        self.means.clear()
        return values


def _mean_of(metric: Any, rows: int) -> Mean:
    if isinstance(metric, Mean):
        return metric
    if hasattr(metric, "total") and hasattr(metric, "count"):
        return Mean(float(metric.total), float(metric.count))
    return Mean(float(metric) * rows, rows)


@dataclass(frozen=True)
class Summary:
    """One value to write: its name in the events, its output, and its kind."""

    name: str
    output: str
    is_histogram: bool


def write_summaries(
    summaries: Sequence[Summary], result: StepResult, events: EventWriter, step: int
) -> None:
    """Write the summaries of one step's result at a global step."""
    values = {s.name: np.asarray(result.outputs[s.output]) for s in summaries if not s.is_histogram}
    events.scalars({name: float(value.mean()) for name, value in values.items()}, step)
    for summary in summaries:
        if summary.is_histogram:
            events.histogram(summary.name, result.outputs[summary.output], step)
