"""Reports on the ranges of weights and gradients, and the layer whose gradient overflows first."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from csrun.base.half_formats import WORD, HalfFormat
from csrun.executable import Plan
from csrun.executable.bind import Array, tensors_of
from csrun.records.events import EventWriter
from csrun.records.number_ranges import NumberRanges, ranges_of, write_page
from csrun.runtime.chief.machine import Machine

log = logging.getLogger("csrun")

_POINTS = 1000  # that stand for a tensor's numbers in a histogram of the events


class RangeReports:
    """Reports every so many steps. half: the 16-bit format of the run.

    Gradients are measured where all of a step's are in the store after it.
    """

    def __init__(self, machine: Machine, folder: Path, every: int, half: HalfFormat) -> None:
        self._machine, self._folder, self._half = machine, folder, half
        self.every = every
        if not machine.gradients:
            log.info(
                "number_ranges: only weights are measured; gradients need a scaled loss or "
                "clip_norm, one CS system and a store in this machine's memory"
            )

    def report(self, step: int, scale: float | None, events: EventWriter) -> None:
        """Measure all tensors after a step, and write them."""
        found = list(self._measured(scale))
        scalars = {name: share for each in found for name, share in each.scalars().items()}
        events.scalars(scalars, step)
        for each in found:
            if each.powers:
                powers = np.repeat(*_thinned(each.powers))
                events.histogram(f"ranges/{each.kind}/{each.name}/log2", powers, step)
        write_page(self._folder, found, self._half, step, scale)

    def _measured(self, scale: float | None) -> Iterator[NumberRanges]:
        state = self._machine.state
        for tensor in tensors_of(self._machine.plan):
            if not tensor.is_state:
                weight = np.asarray(state[tensor.name])
                yield ranges_of(tensor.name, "weight", weight, self._half)
        for name, gradient in self._machine.gradients.items():
            yield ranges_of(name, "gradient", widened(gradient, self._half), self._half)


def range_reports(machine: Machine, folder: Path, every: int | None) -> RangeReports | None:
    """The reports of a training; None where none are asked for, or nothing is 16 bits wide."""
    half = machine.plan.storage
    if every is not None and half is None:
        log.warning("number_ranges has no effect: nothing is 16 bits wide in this run")
    return None if every is None or half is None else RangeReports(machine, folder, every, half)


def _thinned(powers: Mapping[int, int]) -> tuple[list[int], list[int]]:
    total = sum(powers.values())
    return list(powers), [-(-_POINTS * count // total) for count in powers.values()]


def widened(gradient: Array, half: HalfFormat) -> Array:
    """A gradient of the store as float32."""
    if gradient.dtype != np.dtype(WORD):
        return gradient
    found = np.empty(gradient.shape, np.float32)
    half.widen(np.ascontiguousarray(gradient), found)
    return found


def first_overflow(plan: Plan, gradients: Mapping[str, Array]) -> str:
    """Name the layer whose gradient is the first one of the last step that is not finite.

    Empty if all are finite, or not known.
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
