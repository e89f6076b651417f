"""Cache of the variants of a loop's step."""

from collections.abc import Callable
from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.base.mode import RunMode
from csrun.pytorch.errors import user_line
from csrun.pytorch.gradients.edits import KeptEdits
from csrun.pytorch.loop.edited_variants import EditedVariants
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.loop.readback import CHECKED_STEPS
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.variant import StepVariant
from csrun.pytorch.user import SessionLoader

Key = tuple[Any, ...]  # loader, samples of the batch, modes of the model, state of its guards
MOST_STATES = 16  # of one batch: a program each


class VariantCache:
    """Variants by loader, size of the batch, modes of the model and state of its guards.

    session: equal for Sessions that share their variants. changed: returns the name of what changed
    last of all that forward reads.
    """

    def __init__(
        self,
        run: ScriptRun,
        session: tuple[object, ...],
        model: torch.nn.Module,
        changed: Callable[[], str],
    ) -> None:
        self._run, self._changed = run, changed
        self._variants: dict[Key, StepVariant] = {}
        self._earlier = run.variants_of(session, self._variants)
        self._recordings: dict[StepVariant, int] = {}
        self._edited = EditedVariants(model, run.compile)

    def at(
        self, loader: SessionLoader, rows: int | None, modes: tuple[bool, ...], state: int
    ) -> StepVariant | None:
        """Return the variant for a batch, with the edits of gradients of its last step."""
        variant = self._variants.get((loader, rows, modes, state))
        return (
            variant
            if variant is None or not self.is_checked(variant)
            else self._edited.latest(variant)
        )

    def is_checked(self, variant: StepVariant) -> bool:
        """True if its first steps are over; variants by edits are made of checked ones only."""
        return self._recordings.get(variant, CHECKED_STEPS) >= CHECKED_STEPS

    def edited(self, variant: StepVariant, edits: KeptEdits) -> StepVariant:
        """Return the variant with the loop's edits of the gradients."""
        return self._edited.variant_of(variant, edits)

    def ended(self, variant: StepVariant, recorded: RecordedStep) -> StepVariant:
        """Return the variant with the edits of a recorded step, which may end several batches."""
        return self._edited.of_recorded(variant, recorded.recording)

    def switched(
        self, loader: SessionLoader, rows: int | None, modes: tuple[bool, ...], state: int
    ) -> StepVariant | None:
        """Return the variant with modes and guards as set after the batch, if it is known."""
        found = self._variants.get((loader, rows, modes, state))
        if found is None or found.shape.modes != modes or not self.is_checked(found):
            return None
        return self._edited.latest(found)

    def learn(self, step: LoopStep, recorded: RecordedStep, mode: RunMode) -> StepVariant:
        """Return the variant of a recorded step: a new one, or a known one that it equals."""
        variant = step.variant
        if variant is None:  # one whose modules are set between its batch and forward?
            variant = self._variants.get((*recorded.key[:2], recorded.modes, recorded.state))
        if variant is None:
            variant = self._same(recorded)
        if variant is not None:
            recorded.compare(variant, self._run.accumulates)
            self._variants[recorded.key] = variant
        else:
            variant = self._learn_new(step, recorded, mode)
        self._recordings[variant] += 1
        return variant

    def _same(self, recorded: RecordedStep) -> StepVariant | None:
        """Return a variant of another state of the guards that computes the same.

        Raises: UsageError where there are too many that compute different things
        """
        alike = {
            variant: None
            for key, variant in self._variants.items()
            if key[:2] == recorded.key[:2] and key[2] == (recorded.modes or recorded.key[2])
        }
        for variant in alike:
            if recorded.is_same(variant, self._run.accumulates):
                return variant
        if len(alike) >= MOST_STATES:
            raise UsageError(
                f"{user_line()}: what forward reads has had more than {MOST_STATES} values (the "
                f"last to change was {self._changed()}), and each is compiled to a program: change "
                "it less often, or pass it with the batch, as a tensor"
            )
        return None

    def _learn_new(self, step: LoopStep, recorded: RecordedStep, mode: RunMode) -> StepVariant:
        like = next((p for key, p in self._variants.items() if key[:2] == recorded.key[:2]), None)
        inputs = like.shape.inputs if like else None
        variant = self._earlier.get(recorded.key)
        if variant is not None and recorded.takes_over(variant, inputs):
            self._recordings[variant] = CHECKED_STEPS
        else:
            variant = recorded.variant(step.batches, mode, inputs)
            self._recordings[variant] = 0
        self._variants[recorded.key] = variant
        if recorded.modes:
            self._variants[*recorded.key[:2], recorded.modes, recorded.state] = variant
        if variant.executable is None and mode is RunMode.TRAIN:
            self._run.compile(variant)
        return variant
