"""A script that is run again: its loop runs from the start, and what was trained is not again."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.step.queued_step import QueuedStep, Work
from csrun.pytorch.step.step_state import Progress
from csrun.pytorch.step.tokens import StepOutputs
from csrun.pytorch.step.value_log import ValueLog
from csrun.pytorch.weights.sync import GivenBack
from csrun.records import checkpoints, log_lines
from csrun.records.checkpoints import Checkpoint

log = logging.getLogger("csrun")


class GoneError(UsageError):
    """A value of a step cannot be known any more."""


@dataclass
class Replay:
    """Where the script's loops are, beside what earlier runs have left in model_dir.

    found: the newest checkpoint there, as far as it is known. resumed: the training steps of
    earlier runs, which are not taken again. step: the global step that comes next on the wafer.
    """

    model_dir: Path
    users: GivenBack
    found: Checkpoint | None = None
    resumed: int = 0
    step: int = 0
    _made: int = 0  # training steps of the loops
    _kept: ValueLog | None = None
    _is_held: bool = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """While a Session's block runs, and nobody else trains in model_dir.

        Raises: UsageError where a checkpoint there is not the run's own
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
                f"The loop runs from its start; its first {self.resumed} steps are taken already"
            )
        elif self.users.optimization is not None:
            self.users.optimization.require_new()
        return ValueLog(self.model_dir, self.resumed)

    def _require_own(self) -> None:
        """Raises: UsageError where the newest checkpoint is not that of the last Session"""
        newest = checkpoints.kept_steps(self.model_dir)[-1:]
        if newest != (self.step,):
            has = f"its newest one is of step {newest[0]}" if newest else "it has none"
            raise UsageError(
                f"{user_line()}: {self.model_dir} must have the checkpoint of step {self.step}, "
                f"which the last Session has come to, and {has}: start the script again"
            )

    def find(self) -> Checkpoint | None:
        """What a machine that begins now goes on from."""
        if self.step > self.resumed:
            self.found = checkpoints.latest(self.model_dir)
        return self.found

    @property
    def made(self) -> int:
        """The training steps that the loops have made so far, those of an earlier run included."""
        return self._made

    @property
    def is_on(self) -> bool:
        """Whether the loop is where an earlier run has been: nothing of it runs again."""
        return self._made < self.resumed

    @property
    def has_checkpoint(self) -> bool:
        """Whether something of the run was saved, here or earlier."""
        return self.found is not None or self.step > 0

    def require_over(self) -> None:
        """Raises: UsageError in steps that an earlier run has taken"""
        if self.is_on:
            raise UsageError(
                f"{user_line()}: the loop is in step {self._made + 1}, which an earlier run has "
                "taken and whose weights are gone: skip it where the Session's is_replayed is true"
            )

    @property
    def has_lost_weights(self) -> bool:
        """Whether the loop is behind a step that an earlier run has taken, without its weights."""
        return self.is_on and self._made > 0 and not self.users.are_current

    def refuse_lost_weights(self) -> NoReturn:
        """Raises: UsageError where the script reads the model between two Sessions"""
        raise UsageError(
            f"{user_line()}: step {self._made} was taken by an earlier run, and its checkpoint is "
            "not kept: its weights are gone; skip the line where the Session's is_replayed is "
            "true, or have initialize(keep_checkpoint_max=...) keep more"
        )

    def takes(self, step: QueuedStep) -> bool:
        """Whether a step that the loop has made is an earlier run's: it has that one's loss."""
        outputs, is_on = step.outputs, self.is_on
        self._made += step.variant.trains and step.ends_step
        outputs.trained = self._made
        if is_on:
            self.users.are_current = False
            if step.work is not Work.UPDATE:
                outputs.state.advance(Progress.REPLAYED)
            if self._kept is not None and step.variant.trains:
                outputs.loss = self._kept.loss(outputs.number)
        return is_on

    def value(self, values: StepOutputs, ref: Ref) -> torch.Tensor | None:
        """What an earlier run has read of a step, if it has and there was one.

        Raises: GoneError for what it has not read, of a step that is not taken again
        """
        is_replayed = values.state.progress is Progress.REPLAYED
        if self._kept is None or (self._made > self.resumed and not is_replayed):
            return None
        found = self._kept.value(values.number, ref.number)
        if found is None and (self.is_on or is_replayed):
            raise GoneError(
                f"{user_line()}: step {values.number + 1} was taken by an earlier run, which did "
                "not read this value: begin in a new model_dir, or read what that one read"
            )
        return found

    def keep(self, values: StepOutputs, ref: Ref, tensor: torch.Tensor) -> None:
        """Keep a value that the loop reads; behind its block nobody goes on from there."""
        if self._kept is not None and self._is_held:
            trained = self._made if values.trained is None else values.trained
            self._kept.add(values.number, ref.number, trained, tensor)

    def keep_losses(self, steps: Sequence[StepOutputs], losses: Sequence[float]) -> None:
        """Keep those of training steps that were taken."""
        if self._kept is not None:
            trained = [step.trained or 0 for step in steps]
            self._kept.add_losses([step.number for step in steps], trained, losses)

    def give_back_found(self) -> None:
        """Give the user's objects what an earlier run has left, if there is one."""
        if self.found is not None:
            self.users.found(self.found)

    def give_back_kept(self) -> None:
        """A block is left amid what an earlier run has taken: give them its checkpoint, if kept."""
        if self._made in checkpoints.kept_steps(self.model_dir):
            path = self.model_dir / checkpoints.name_of(self._made)
            self.users.found(checkpoints.open_checkpoint(path))
