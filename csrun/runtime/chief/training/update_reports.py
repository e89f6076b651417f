"""Numbers about the updates in the events of a training, at each log step."""

import logging
from math import isfinite

import numpy as np

from csrun.base.half_ranges import widened
from csrun.executable.arrays import Array
from csrun.executable.store_places import tensors_of
from csrun.records.events import EventWriter
from csrun.records.update_summaries import (
    UpdateSummaries,
    family_of,
    gradient_scalars,
    norm_of,
    powers_of,
)
from csrun.runtime.chief.machine import Machine

log = logging.getLogger("csrun")

_OF_FLOAT32 = 2.0**-126  # smallest normal number
_OF_HALVES = 2.0**-14  # as in the original, for any format


class UpdateReports:
    """Writer of the numbers that a training's optimizer requests."""

    def __init__(self, machine: Machine, asked: UpdateSummaries) -> None:
        self._machine, self._asked = machine, asked
        for key, other in asked.without_effect:
            log.info(f"optimizer.{key} has no effect without optimizer.{other}")
        if asked.log_summaries and not machine.gradients:
            log.info(
                "log_summaries: gradients are not measured: they need a scaled loss or clip_norm, "
                "one CS system and a store in this machine's memory"
            )

    def write(self, step: int, rate: float | None, events: EventWriter) -> None:
        """Write the numbers of a step; the norm of scaled gradients is written with the scale."""
        if not self._asked.log_summaries:
            return
        gradients = {name: self._widened(one) for name, one in self._machine.gradients.items()}
        found = {} if rate is None else {"train/lr": rate}
        if gradients and self._machine.plan.loss_scaling is None:
            found["train/unclipped_grad_norm"] = norm_of(list(gradients.values()))
        if self._asked.ws_summary:
            found |= self._of_all(gradients)
        for name, gradient in gradients.items():
            family = family_of(name)
            if not self._asked.log_grads or family is None:
                continue
            half = self._machine.plan.storage
            least = _OF_FLOAT32 if half is None else _OF_HALVES
            found |= gradient_scalars(family, name, gradient, least)
            if self._asked.log_hists and np.isfinite(gradient).all():
                events.histogram(f"{family}/{name}", powers_of(gradient), step)
        # event viewers cannot draw other values
        events.scalars({tag: value for tag, value in found.items() if isfinite(value)}, step)

    def _of_all(self, gradients: dict[str, Array]) -> dict[str, float]:
        state = self._machine.state
        weights = [t.name for t in tensors_of(self._machine.plan) if not t.is_state]
        found = {"train/params_norm": norm_of([np.asarray(state[name]) for name in weights])}
        if gradients:
            zeros = (np.count_nonzero(gradient == 0) for gradient in gradients.values())
            found["train/grad_num_zeros"] = float(sum(zeros))
        return found

    def _widened(self, gradient: Array) -> Array:
        half = self._machine.plan.storage
        return gradient if half is None else widened(gradient, half)
