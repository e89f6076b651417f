"""Updates of a program from its gradients: group by group, or of all groups at once."""

from collections.abc import Sequence
from math import isfinite, sqrt

from csrun.executable import MOST_STEPS, Plan, StepState, UpdateProgram
from csrun.executable.arrays import Array
from csrun.executable.program_functions import total
from csrun.executable.shards import Own
from csrun.runtime.step.scale_rows import scale_rows
from csrun.runtime.step.update_gate import UpdateGate
from csrun.runtime.store.pages import GroupPages

ROUNDING = 1e-6  # added to the norm before the division, as in torch.nn.utils.clip_grad_norm_


class Updates:
    """Application of gradients, in the order of the plan's deliveries.

    A group's weights are not read again in a step once its gradients are complete, so its update
    follows immediately, or as soon as a checkpoint has copied its old values. With clipping to a
    global norm all gradients must be complete first. Of several tasks each has its `own` groups;
    the norm is over the gradients of all, and is written to the step's row of `numbers`.

    Shapes: numbers as of `numbers_view`
    """

    def __init__(
        self,
        plan: Plan,
        program: UpdateProgram,
        pages: GroupPages | None = None,
        gate: UpdateGate | None = None,
        own: Own = None,
        numbers: Array | None = None,
    ) -> None:
        self._gate = gate or UpdateGate(plan)
        self._last_copied = self._gate.last_of_groups(plan)
        self.order = tuple(g for g in plan.deliveries if own is None or g in own)
        self.awaits_total = own is not None and plan.measures and bool(self.order)
        following = (*self.order[1:], *self.order[:1])
        self._following = dict(zip(self.order, following, strict=True))
        self._pages = pages or GroupPages()
        self._program = program
        self._clip_norm, self._measures = plan.clip_norm, plan.measures
        self._norms = None if numbers is None else numbers[:, plan.store.numbers]
        self._scales = scale_rows(plan, numbers)
        self._squares: list[float] = []

    @property
    def held_s(self) -> float:
        """Seconds for which updates have waited for checkpoints so far."""
        return self._gate.held_s

    def deliver(self, group: int, step: StepState) -> Sequence[int]:
        """Note that the group's gradients are in the store; return the groups that are updated
        now.
        """
        if not self._measures:
            return self._update((group,), step)
        self._squares += self._program.squares[group]()
        self._pages.mark_measured(group)
        if self.awaits_total or group != self.order[-1]:
            return ()
        return self.apply(total(self.measured()), step)

    def measured(self) -> list[float]:
        """Return the sums of squares of the step's gradients, one per parameter, and reset them."""
        squares, self._squares = self._squares, []
        return squares

    def apply(self, squares: float, step: StepState) -> Sequence[int]:
        """Update all groups with clipped gradients; total: sum of the squares of all of them.

        With loss scaling the gradients are unscaled, and a step without a finite norm is skipped.
        """
        if not self._measures:
            return self._update(self.order, step)
        norm, step.clip, is_applied = sqrt(squares), 1.0, True
        if self._scales is not None:
            before = self._scales.before(step.index)
            step.skipped = int(before.skipped)
            norm, step.clip = norm / before.scale, 1.0 / before.scale
            is_applied = isfinite(norm)
            self._scales.advance(step.index, is_applied)
        if self._clip_norm is not None:
            step.clip *= clipping(norm, self._clip_norm)
        if self._norms is not None:
            self._norms[step.index % MOST_STEPS] = norm
        return self._update(self.order, step, is_applied)

    def loss_scale(self, step: int) -> float:
        """Return the loss scale of a step, after the previous step is complete."""
        return 1.0 if self._scales is None else self._scales.before(step).scale

    def _update(
        self, groups: Sequence[int], step: StepState, is_applied: bool = True
    ) -> Sequence[int]:
        for each in groups:
            self._pages.await_state(each)
            # The next group's state is read from disk while this one is updated.
            self._pages.fetch_state(self._following[each])
            self._gate.wait(self._last_copied[each])
            if is_applied:
                self._program.update[each](step)
            self._pages.mark_updated(each)
        return groups


def clipping(norm: float, longest: float) -> float:
    """Return the factor that clips gradients of a global norm to `longest`.

    Source: Pascanu et al. 2013, algorithm 1, in the form of torch.nn.utils.clip_grad_norm_
    """
    factor = longest / (norm + ROUNDING)
    # The comparison is false for NaN, which then reaches the weights, as in PyTorch.
    return 1.0 if factor > 1 else factor  # NaN is preserved
