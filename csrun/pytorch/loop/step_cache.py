"""The parts of a Session's loop that are known: new ones are learned from recorded steps."""

from collections.abc import Callable
from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.base.mode import RunMode
from csrun.pytorch.errors import user_line
from csrun.pytorch.gradients.edits import KeptEdits
from csrun.pytorch.loop.edited_steps import EditedParts
from csrun.pytorch.loop.readback import CHECKED_STEPS
from csrun.pytorch.loop.recorded_step import RecordedStep, Step
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.compiled_step import Part
from csrun.pytorch.user import Loader

Key = tuple[Any, ...]  # loader, samples of the batch, modes of the model, state of its guards
MOST_STATES = 16  # of one batch's parts: a program each


class KnownParts:
    """The parts of one loop, by loader, size of the batch, modes of the model and what it reads.

    session: what tells Sessions apart; one that is as this one has the same parts. changed: gives
    the name of what changed last of all that forward reads.
    """

    def __init__(
        self,
        run: ScriptRun,
        session: tuple[object, ...],
        model: torch.nn.Module,
        changed: Callable[[], str],
    ) -> None:
        self._run, self._changed = run, changed
        self._parts: dict[Key, Part] = {}
        self._earlier = run.parts_of(session, self._parts)
        self._recordings: dict[Part, int] = {}
        self._edited = EditedParts(model, run.compile)

    def at(
        self, loader: Loader, rows: int | None, modes: tuple[bool, ...], state: int
    ) -> Part | None:
        """The part that a batch begins, as its gradients were edited last."""
        part = self._parts.get((loader, rows, modes, state))
        return part if part is None or not self.is_checked(part) else self._edited.latest(part)

    def is_checked(self, part: Part) -> bool:
        """Whether its first steps are over; forms of edits are those of a part that is."""
        return self._recordings.get(part, CHECKED_STEPS) >= CHECKED_STEPS

    def edited(self, part: Part, edits: KeptEdits) -> Part:
        """The part with the gradients as the loop has edited them."""
        return self._edited.part_of(part, edits)

    def ended(self, part: Part, recorded: RecordedStep) -> Part:
        """The part with the gradients as a recorded step has edited them, which may have several
        batches."""
        return self._edited.of_recorded(part, recorded.recording)

    def switched(
        self, loader: Loader, rows: int | None, modes: tuple[bool, ...], state: int
    ) -> Part | None:
        """Return the part with modes and a state that were set behind the batch, if it is known."""
        found = self._parts.get((loader, rows, modes, state))
        if found is None or found.shape.modes != modes or not self.is_checked(found):
            return None
        return self._edited.latest(found)

    def learn(self, step: Step, recorded: RecordedStep, mode: RunMode) -> Part:
        """A recorded step is over: it is a new part of the loop, or is compared with its part."""
        part = step.part
        if part is None:  # one whose modules are set between its batch and forward?
            part = self._parts.get((*recorded.key[:2], recorded.modes, recorded.state))
        if part is None:
            part = self._same(recorded)
        if part is not None:
            recorded.compare(part, self._run.accumulates)
            self._parts[recorded.key] = part
        else:
            part = self._learn_new(step, recorded, mode)
        self._recordings[part] += 1
        return part

    def _same(self, recorded: RecordedStep) -> Part | None:
        """Return a part of another state of the guards, which a step computes all the same.

        Raises: UsageError where there are too many that compute different things
        """
        alike = {
            part: None
            for key, part in self._parts.items()
            if key[:2] == recorded.key[:2] and key[2] == (recorded.modes or recorded.key[2])
        }
        for part in alike:
            if recorded.is_same(part, self._run.accumulates):
                return part
        if len(alike) >= MOST_STATES:
            raise UsageError(
                f"{user_line()}: what forward reads has had more than {MOST_STATES} values "
                f"(the last to change was {self._changed()}), each of which is a program: let it "
                "change less often, or have it come with the batch, as a tensor"
            )
        return None

    def _learn_new(self, step: Step, recorded: RecordedStep, mode: RunMode) -> Part:
        like = next((p for key, p in self._parts.items() if key[:2] == recorded.key[:2]), None)
        inputs = like.shape.inputs if like else None
        part = self._earlier.get(recorded.key)
        if part is not None and recorded.takes_over(part, inputs):
            self._recordings[part] = CHECKED_STEPS
        else:
            part = recorded.part(step.batches, mode, inputs)
            self._recordings[part] = 0
        self._parts[recorded.key] = part
        if recorded.modes:
            self._parts[*recorded.key[:2], recorded.modes, recorded.state] = part
        if part.executable is None and mode is RunMode.TRAIN:
            self._run.compile(part)
        return part
