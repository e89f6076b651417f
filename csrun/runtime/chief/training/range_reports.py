"""Reports on the ranges of weights, gradients and activations, and on the operator that
overflows.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from csrun.base.half_formats import HalfFormat
from csrun.base.half_ranges import widened
from csrun.executable import Plan
from csrun.executable.arrays import Array
from csrun.executable.loss_scale import ScaleState
from csrun.executable.store_places import tensors_of
from csrun.records.events import EventWriter
from csrun.records.number_ranges import NumberRanges, ranges_of, write_page
from csrun.runtime.chief.machine import Machine
from csrun.runtime.chief.training.step_measurements import StepMeasurements

log = logging.getLogger("csrun")

_POINTS = 1000  # bins of a tensor's histogram in the events


class RangeReports:
    """Reports at intervals of steps; half: the 16-bit format of the run.

    Gradients are measured if the store keeps all of them after a step.
    """

    def __init__(self, machine: Machine, folder: Path, every: int, half: HalfFormat) -> None:
        self._machine, self._folder, self._half = machine, folder, half
        self.every = every
        self._measurements = StepMeasurements(machine, folder)
        self._activations: list[NumberRanges] = []  # of the last measured step
        if not machine.gradients:
            log.info(
                "number_ranges: only weights and activations are measured; gradients need a scaled "
                "loss or clip_norm, one CS system and a store in this machine's memory"
            )

    def after_step(
        self, step: int, before: ScaleState | None, now: ScaleState | None, events: EventWriter
    ) -> None:
        """Report if due: at the interval, and when the scale was halved.

        before, now: loss scale before and after the step.
        """
        is_halved = now is not None and before is not None and now.scale < before.scale
        if is_halved or step % self.every == 0:
            self._report(step, None if now is None else now.scale, events)

    def _report(self, step: int, scale: float | None, events: EventWriter) -> None:
        """Measure all tensors after a step, and write them."""
        found = [*self._of_store(), *self._measurements.activations(step)]
        scalars = {name: share for each in found for name, share in each.scalars().items()}
        events.scalars(scalars, step)
        for each in found:
            if each.powers:
                powers = np.repeat(*_thinned(each.powers))
                events.histogram(f"ranges/{each.kind}/{each.name}/log2", powers, step)
        if step % self.every == 0:
            earlier = f"activation, step {step}"
            self._activations = [replace(e, kind=earlier) for e in found if e.kind == "activation"]
        else:
            found += self._activations
        write_page(self._folder, found, self._half, step, scale)

    def first_overflow(self, step: int) -> str:
        """Return the operator with the first non-finite result of a step."""
        return self._measurements.first_overflow(step)

    def _of_store(self) -> Iterator[NumberRanges]:
        state = self._machine.state
        for tensor in tensors_of(self._machine.plan):
            if not tensor.is_state:
                weight = np.asarray(state[tensor.name])
                yield ranges_of(tensor.name, "weight", weight, self._half)
        for name, gradient in self._machine.gradients.items():
            yield ranges_of(name, "gradient", gradient, self._half)


def range_reports(machine: Machine, folder: Path, every: int | None) -> RangeReports | None:
    """Return the reports of a training; None if not requested, or if nothing is stored in 16
    bits.
    """
    half = machine.plan.storage
    if every is not None and half is None:
        log.warning("number_ranges has no effect in this run: no tensor is stored in 16 bits")
    return None if every is None or half is None else RangeReports(machine, folder, every, half)


def _thinned(powers: Mapping[int, int]) -> tuple[list[int], list[int]]:
    total = sum(powers.values())
    return list(powers), [-(-_POINTS * count // total) for count in powers.values()]


def first_overflow(plan: Plan, gradients: Mapping[str, Array]) -> str:
    """Return the layer with the first non-finite gradient of the last step.

    Empty if all gradients are finite, or unknown.
    """
    if plan.storage is None:
        return ""
    layer_of = {name: layer for layer in plan.layers for name in layer.parameters}
    delivered = {group: place for place, group in enumerate(plan.deliveries)}
    # Layers of one group are completed together, the last one first.
    order = {
        layer.name: (delivered.get(layer.group, 0), -number)
        for number, layer in enumerate(plan.layers)
    }
    known = [name for name in gradients if name in layer_of]
    names = sorted(known, key=lambda name: order[layer_of[name].name])
    for name in names:
        values = widened(gradients[name], plan.storage)
        if not np.isfinite(values).all():
            layer = layer_of[name]
            return f"first in layer {layer.name} ({layer.kernel}), in the gradient of {name}"
    return ""
