"""Measurements of the values of a step, from all programs and minibatches that computed it."""

from collections.abc import Iterator
from pathlib import Path

from csrun.base.half_ranges import RangeCounts
from csrun.executable import MeasuredSteps, RecordedValue
from csrun.executable.measured_values import (
    RANGES_FOLDER,
    MeasuredValue,
    Overflow,
    measured_values,
    remove_measured,
)
from csrun.records.number_ranges import NumberRanges
from csrun.runtime.chief.machine import Machine


class StepMeasurements:
    """Measurements in a model_dir's compile directories; those of a step are deleted when read.

    folder: model_dir
    """

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine, self._folder = machine, folder
        for ranges, _ in self._places():  # left by an earlier run
            remove_measured(ranges)

    def activations(self, step: int) -> list[NumberRanges]:
        """Return the ranges of a step's stored activations; empty if it was not measured."""
        found: dict[str, RangeCounts] = {}
        for value, measured in self._values(step):
            if (counts := measured.counts) is not None:
                before = found.get(value.key)
                found[value.key] = counts if before is None else before + counts
        self._remove(step)
        return [NumberRanges.of(name, "activation", counts) for name, counts in found.items()]

    def first_overflow(self, step: int) -> str:
        """Return the place of the first non-finite value of a step; empty if none is known.

        Minus infinity alone may be a mask's, except in gradients: it is returned only if there is
        no other.
        """
        found = []
        for value, measured in self._values(step):
            if (overflow := measured.overflow) is not None:
                is_mask = overflow is Overflow.POSSIBLE and not value.is_gradient
                found.append((is_mask, measured.number, value.place))
        return f"first in {min(found)[-1]}" if found else ""

    def _remove(self, step: int) -> None:
        for ranges, _ in self._places():
            remove_measured(ranges, step)

    def _values(self, step: int) -> Iterator[tuple[RecordedValue, MeasuredValue]]:
        for ranges, measuring in self._places():
            for measured in measured_values(ranges, step):
                yield measuring.values[measured.number], measured

    def _places(self) -> Iterator[tuple[Path, MeasuredSteps]]:
        plans = {f"tfcs_{plan.checksum}": plan.measuring for plan in self._machine.plans}
        for path in sorted(self._folder.glob(f"tfcs_*/{RANGES_FOLDER}")):
            if (measuring := plans.get(path.parent.name)) is not None:
                yield path, measuring
