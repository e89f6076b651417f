"""Loss scale of the steps, in rows of the store's numbers."""

import logging
from collections.abc import Callable
from math import isfinite

import numpy as np

from csrun.base.half_formats import SCALE_KEYS, SCALE_TENSORS
from csrun.executable import MOST_STEPS, Plan
from csrun.executable.arrays import Array
from csrun.executable.loss_scale import EXHAUSTED, LossScaling, ScaleState
from csrun.records import log_lines
from csrun.records.checkpoints import Checkpoint

log = logging.getLogger("csrun")


class ScaleRows:
    """State of the loss scale after each of the last steps.

    Shapes: numbers as of `numbers_view`
    """

    def __init__(self, plan: Plan, scaling: LossScaling, numbers: Array) -> None:
        self.scaling = scaling
        self._rows = numbers[:, scale_columns(plan)]

    def before(self, step: int) -> ScaleState:
        """Return the state before a step, after the previous one is complete."""
        return ScaleState(*self._rows[(step - 1) % MOST_STEPS].tolist())

    def advance(self, step: int, is_finite: bool) -> None:
        """Record the state after a step."""
        self._rows[step % MOST_STEPS] = self.scaling.after(self.before(step), is_finite)


def scale_rows(plan: Plan, numbers: Array | None) -> ScaleRows | None:
    """Return the rows of a plan with loss scaling."""
    if plan.loss_scaling is None:
        return None
    assert numbers is not None, "a scaled loss has its scale in the store"
    return ScaleRows(plan, plan.loss_scaling, numbers)


def scale_columns(plan: Plan) -> slice:
    """Columns of the scale's state, after the numbers and the norm."""
    first = plan.store.numbers + 1
    return slice(first, first + len(SCALE_TENSORS))


class ScaleTracker:
    """Chief's view of the loss scale, between two orders and over those of the last one.

    state: after the last step.
    before: before it; None before the first step.
    scales: of each step of the last order.
    Shapes: store as of `numbers_view`, for any location of the store
    """

    def __init__(self, plan: Plan, scaling: LossScaling, store: Array, state: ScaleState) -> None:
        self._plan, self._scaling, self._store = plan, scaling, store
        self.state = state
        self.before: ScaleState | None = None
        self.norm = 0.0
        self.scales: list[float] = []

    def begin(self, first: int) -> None:
        """Write the state where the updates of the next steps, from `first` on, read it."""
        rows = np.array(self._store)
        rows[:, self._plan.store.numbers :] = 0  # from steps in which a task has no groups
        rows[(first - 1) % MOST_STEPS, scale_columns(self._plan)] = self.state
        self._store[...] = rows

    def finish(
        self, first: int, count: int, overflow: Callable[[], str] = lambda: ""
    ) -> str | None:
        """Read the state after the steps of an order; return the reason if no step may follow.

        overflow: returns the first non-finite gradient of the last step.
        """
        rows, self.scales = np.asarray(self._store), []
        skipped, began = 0, self.state.scale
        for step in range(first, first + count):
            row, self.before = rows[step % MOST_STEPS], self.state
            before = self.before
            self.scales.append(before.scale)
            self.norm = float(row[self._plan.store.numbers])
            self.state = ScaleState(*row[scale_columns(self._plan)].tolist())
            skipped += not isfinite(self.norm)
            if self._is_exhausted(before):
                return _with(
                    f"{EXHAUSTED}: loss scale {before.scale:g} at step {step + 1}", overflow
                )
        if self.state.scale != began:
            line = log_lines.loss_scale(first + count, began, self.state.scale, skipped)
            log.info(_with(line, overflow) if not isfinite(self.norm) else line)
        return None

    def _is_exhausted(self, before: ScaleState) -> bool:
        is_least = before.scale <= self._scaling.minimum and self._scaling.is_dynamic
        return is_least and not isfinite(self.norm)

    @property
    def scalars(self) -> dict[str, float]:
        """Return the events of a step."""
        found = {"train/loss_scale": self.state.scale}
        if isfinite(self.norm):  # event viewers cannot draw other values
            found["train/unclipped_grad_norm"] = self.norm
        return found

    @property
    def tensors(self) -> dict[str, Array]:
        """Return the state as tensors of a checkpoint."""
        return {name: np.array(v) for name, v in zip(SCALE_TENSORS, self.state, strict=True)}


def _with(line: str, overflow: Callable[[], str]) -> str:
    where = overflow()
    return f"{line}, {where}" if where else line


def scale_tracker(
    plan: Plan, numbers: Array | None, first: ScaleState | None
) -> ScaleTracker | None:
    """Return the tracker of a plan with loss scaling; first: initial state of the training."""
    if plan.loss_scaling is None or numbers is None:
        return None
    return ScaleTracker(plan, plan.loss_scaling, numbers, first or plan.loss_scaling.first)


def scale_of(checkpoint: Checkpoint) -> ScaleState | None:
    """Return the state from a checkpoint's tensors; None if it was written without scaling."""
    known = checkpoint.manifest.tensors
    if not known.keys() >= set(SCALE_KEYS):
        return None
    return ScaleState(*(float(checkpoint.tensor(name)) for name in SCALE_TENSORS if name in known))
