"""Gradient accumulation: several batches before one `optimizer.step()`."""

import logging
from collections.abc import Iterable
from weakref import WeakKeyDictionary

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.gradients.deferred import Gradients, edited_too_early
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.lower.clipping import is_of_sum
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.record.recording import Recording
from csrun.pytorch.step.variant import StepVariant

log = logging.getLogger("csrun")


class GradientAccumulation:
    """Checks that the wafer's sum of gradients is the one that PyTorch computes."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimization: Optimization | None,
        gradients: Gradients,
    ) -> None:
        self._model, self._gradients = model, gradients
        self._optimized: list[str] = []
        self._known: WeakKeyDictionary[StepVariant, bool] = WeakKeyDictionary()
        self.add_optimized(optimization.parameters if optimization else ())
        self._left: LoopStep | None = None

    def add_optimized(self, parameters: Iterable[torch.Tensor]) -> None:
        """Add parameters of the optimizer."""
        added = set(map(id, parameters))
        self._optimized += [n for n, p in self._model.named_parameters() if id(p) in added]
        self._known.clear()

    def leave(self, step: LoopStep) -> None:
        """Note that the loop takes another batch before `optimizer.step()`.

        Raises: UsageError if the gradients were edited, or cannot be accumulated
        """
        if step.recorded is None:
            self._gradients.leave(step.place + 1)
        else:
            now = step.recorded.recording
            if now.gradients != now.first_gradients:
                raise edited_too_early()
            self._appear(step, now, 0 if step.recorded.is_cleared else step.place + 1)
        self.require(step)
        self._left = step

    def take_left(self) -> LoopStep | None:
        """Return the last batch of a pass if its gradients wait for `optimizer.step()`."""
        if not self._gradients.added_to():
            return None
        self._gradients.batches = 0
        return self._left

    def end_recorded(self, step: LoopStep) -> None:
        """Note the end of a recorded step with several batches."""
        assert step.recorded is not None, "asked of one"
        self._appear(step, step.recorded.recording, 0)

    def warn_of_unused_gradients(self) -> None:
        """Warn, at the block's end, of gradients without a following `optimizer.step()`."""
        if batches := self._gradients.waiting:
            log.warning(
                f"The gradients of the last {batches} batches are dropped: no optimizer.step() "
                "followed before the end of the block"
            )

    def _appear(self, step: LoopStep, now: Recording, batches: int) -> None:
        if step.place:
            self._gradients.require_same(now.first_gradients)
        is_gone = step.recorded is not None and step.recorded.is_cleared
        names = {} if is_gone else now.first_gradients
        self._gradients.appear(names, None if step.place else step.outputs)
        self._gradients.batches = batches

    def require(self, step: LoopStep) -> None:
        """Raises: UsageError for a batch whose gradients cannot be accumulated"""
        assert step.variant is not None, "the step has a variant"
        recording = step.variant.recording
        if odd := sorted({*recording.written, *recording.counters}):
            raise UsageError(
                f"{user_line()}: forward writes the buffer {odd[0]}, such as the statistics of a "
                "norm, and would write it once in a step of several batches: set such layers to "
                "eval(), use LayerNorm or GroupNorm, or a larger batch_size without accumulation"
            )
        if not self.are_of_sums(step.variant):
            raise UsageError(
                f"{user_line()}: accumulated gradients are edited: clip all parameters of the "
                "optimizer by clip_grad_norm_ or clip_grad_value_; divide the loss to scale them"
            )

    def are_of_sums(self, *variants: StepVariant) -> bool:
        """True if the updates use gradients unchanged, or clip all of them by norm."""
        return all(map(self._is_of_sum, variants))

    def _is_of_sum(self, variant: StepVariant) -> bool:
        if variant not in self._known:
            recording = variant.recording
            trained = [name for name in self._optimized if name in recording.gradients]
            self._known[variant] = is_of_sum(recording, trained)
        return self._known[variant]
