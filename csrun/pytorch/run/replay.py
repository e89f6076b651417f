"""Replay of a resumed script: its loop starts from the beginning, and its earlier steps are not
run.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import torch

from csrun.base.errors import UsageError
from csrun.executable.loss_scale import ScaleState
from csrun.pytorch.errors import user_line
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.step.queued_step import QueuedStep, QueuedWork
from csrun.pytorch.step.step_outputs import StepOutputs
from csrun.pytorch.step.step_status import StepProgress
from csrun.pytorch.step.value_log import ValueLog
from csrun.pytorch.weights.sync import WeightSync
from csrun.records import checkpoints, log_lines
from csrun.records.checkpoints import Checkpoint
from csrun.runtime.step.scale_rows import scale_of

log = logging.getLogger("csrun")

LOADED_STEPS = "loaded_steps"  # key of a checkpoint's identity
#: Among the logged values of a step: the loss scale after it, and before it.
_SCALE, _SCALE_BEFORE = Ref(-(2**31)), Ref(-(2**31) + 1)


class ValueLostError(UsageError):
    """A value of a step is no longer available."""


@dataclass
class Replay:
    """Position of the script's loops, compared with the files of earlier runs in model_dir.

    found: the newest checkpoint there, if known.
    first: step from which the loops count, more than 0 with optimizer state that the script loads.
    resumed: training steps of earlier runs; those from `first` on are replayed.
    step: the next global step on the wafer.
    identity: entry of the run's checkpoints with the steps of loaded optimizer state, if there is
        any.
    """

    model_dir: Path
    users: WeightSync
    found: Checkpoint | None = None
    first: int = 0
    resumed: int = 0
    step: int = 0
    identity: Mapping[str, str] = field(default_factory=dict)
    _done: int = 0  # training steps of the loops, and of a loaded optimizer state
    _kept: ValueLog | None = None
    _is_held: bool = False

    def begin_at(self, step: int | None) -> None:
        """Count steps from the number of optimizer state that the script has loaded; None without
        any.
        """
        self.identity = {} if step is None else {LOADED_STEPS: str(step)}
        self.first = self._done = step or 0
        if self._is_new:
            self.resumed = self.step = self.first

    @property
    def _is_new(self) -> bool:
        """True for a run whose first steps no earlier run has computed."""
        return self.found is None or self.found.manifest.is_converted

    def require_same_state(self) -> None:
        """Raises: UsageError for other loaded optimizer state than the earlier run began with"""
        if self._is_new or self.has_begun:
            return
        assert self.found is not None, "the run is not new"
        then, now = (x.get(LOADED_STEPS) for x in (self.found.manifest.identity, self.identity))
        if then != now:
            has, had = (f"optimizer state of {n} steps" if n else "no state" for n in (now, then))
            raise UsageError(
                f"{user_line()}: the script begins with {has}, and the run in {self.model_dir} "
                f"began with {had}: load the same state, or use a new model_dir (csrun resumes "
                "from its own checkpoints)"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock model_dir and the value log while a Session's block runs.

        Raises: UsageError if a checkpoint there is not the run's own
        """
        kept = self._kept
        if kept is None:
            kept = self._kept = self._begun()
        elif self.step > self.resumed:
            self._require_own()
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            kept.close()

    def _begun(self) -> ValueLog:
        log.info(log_lines.saving_to(self.model_dir))
        self.found = checkpoints.latest(self.model_dir)
        if self.found is not None:
            self.resumed = self.step = self.found.step
            self.users.are_current = False
            log.info(
                "The loop starts from the beginning: its steps up to global step "
                f"{self.resumed} are replayed, not run"
            )
        return ValueLog(self.model_dir, self.resumed)

    def _require_own(self) -> None:
        """Raises: UsageError if the newest checkpoint is not that of the last Session"""
        newest = checkpoints.kept_steps(self.model_dir)[-1:]
        if newest != (self.step,):
            has = f"its newest one is of step {newest[0]}" if newest else "it has none"
            raise UsageError(
                f"{user_line()}: {self.model_dir} must have the checkpoint of step {self.step}, "
                f"where the last Session ended, and {has}: start the script again"
            )

    def find(self) -> Checkpoint | None:
        """Return the checkpoint that a new machine starts from, or None."""
        if self.step > self.resumed:
            self.found = checkpoints.latest(self.model_dir)
        return self.found

    @property
    def done(self) -> int:
        """Number of training steps that the loops have made, including those of an earlier run."""
        return self._done

    @property
    def is_on(self) -> bool:
        """True if the loop is in steps that an earlier run has computed."""
        return self._done < self.resumed

    @property
    def has_checkpoint(self) -> bool:
        """True if a checkpoint of the run exists, from this or an earlier run."""
        return self.found is not None or self.step > self.resumed

    @property
    def has_begun(self) -> bool:
        """True from the loops' first training step on, replayed or not."""
        return self._done > self.first

    @property
    def is_at_start(self) -> bool:
        """True before the first replayed step: the user's objects have their initial values."""
        return self.is_on and not self.has_begun

    def require_over(self) -> None:
        """Raises: UsageError during replayed steps, after the first"""
        if self.is_on and not self.is_at_start:
            raise UsageError(
                f"{user_line()}: step {self._done + 1} ran in an earlier run, and its weights "
                "are not available: skip this line where the Session's is_replayed is true"
            )

    @property
    def has_lost_weights(self) -> bool:
        """True if the loop is after a replayed step whose weights are lost."""
        return self.is_on and self.has_begun and not self.users.are_current

    def refuse_lost_weights(self) -> NoReturn:
        """Raises: UsageError if the script reads the model between two Sessions"""
        raise UsageError(
            f"{user_line()}: step {self._done} ran in an earlier run, and its checkpoint was "
            "removed: skip this line where the Session's is_replayed is true, or keep more "
            "checkpoints by initialize(keep_checkpoint_max=...)"
        )

    def takes(self, step: QueuedStep) -> bool:
        """True if an earlier run has computed a step; the step then gets that run's loss."""
        outputs, is_on = step.outputs, self._done < self.resumed
        if step.variant.trains and step.work is not QueuedWork.BATCH:
            self._done += 1
        outputs.trained = self._done
        if is_on:
            self.users.are_current = False
            if self.found is not None and not self.is_on:
                self.users.integers.load(self.found)
            if step.work is not QueuedWork.UPDATE:
                outputs.status.advance(StepProgress.REPLAYED)
            if self._kept is not None and step.variant.trains:
                outputs.loss = self._kept.loss(outputs.number)
        return is_on

    def value(self, values: StepOutputs, ref: Ref) -> torch.Tensor | None:
        """Return a value of a step that an earlier run has read, or None.

        Raises: ValueLostError for a value of a replayed step that it has not read
        """
        is_replayed = values.status.progress is StepProgress.REPLAYED
        if self._kept is None or (self._done > self.resumed and not is_replayed):
            return None
        found = self._kept.value(values.number, ref.number)
        if found is None and (self.is_on or is_replayed):
            raise ValueLostError(
                f"{user_line()}: step {values.number + 1} ran in an earlier run, which did "
                "not read this value: begin in a new model_dir, or read only what that run read"
            )
        return found

    def keep(self, values: StepOutputs, ref: Ref, tensor: torch.Tensor) -> None:
        """Log a value that the loop reads; no run resumes before it once its block has ended."""
        if self._kept is not None and self._is_held:
            trained = self._done if values.trained is None else values.trained
            self._kept.add(values.number, ref.number, trained, tensor)

    def scale(self, *, before_last_step: bool) -> ScaleState | None:
        """Return the loss scale that an earlier run has read here; None before the first step.

        Raises: ValueLostError if it has not read it
        """
        found = self._kept_scale(before_last_step)
        if found is None and self.has_begun:
            raise ValueLostError(
                f"{user_line()}: step {self._done} ran in an earlier run, which did not read "
                "the loss scale: begin in a new model_dir, or read it where that run read it"
            )
        return found

    def keep_scale(self, state: ScaleState, *, before_last_step: bool) -> None:
        """Log the loss scale after the loops' steps so far, or before the last one, because the
        loop reads it.
        """
        if self._kept is not None and self._is_held:
            tensor = torch.tensor(state, dtype=torch.float64)
            self._kept.add(self._done, _scale_ref(before_last_step).number, self._done, tensor)

    def _kept_scale(self, before_last_step: bool) -> ScaleState | None:
        number = _scale_ref(before_last_step).number
        found = None if self._kept is None else self._kept.value(self._done, number)
        return None if found is None else ScaleState(*found.tolist())

    def found_scale(self, *, before_last_step: bool) -> ScaleState | None:
        """Return the loss scale of the checkpoint that a new machine starts from.

        before_last_step: that before its last step, if the earlier run has read it.
        """
        if before_last_step and (read := self._kept_scale(before_last_step)) is not None:
            return read
        found = self.find()
        return None if found is None else scale_of(found)

    def keep_losses(self, steps: Sequence[StepOutputs], losses: Sequence[float]) -> None:
        """Log the losses of training steps."""
        if self._kept is not None:
            trained = [step.trained or 0 for step in steps]
            self._kept.add_losses([step.number for step in steps], trained, losses)

    def load_found_checkpoint(self) -> None:
        """Copy the found checkpoint to the user's objects, if there is one."""
        if self.found is not None:
            self.users.load_checkpoint(self.found)

    def load_last_checkpoint(self) -> None:
        """Copy the checkpoint of a block's last step to the user's objects, if it exists."""
        if self._done in checkpoints.kept_steps(self.model_dir):
            path = self.model_dir / checkpoints.name_of(self._done)
            self.users.load_checkpoint(checkpoints.open_checkpoint(path))


def _scale_ref(before_last_step: bool) -> Ref:
    return _SCALE_BEFORE if before_last_step else _SCALE
