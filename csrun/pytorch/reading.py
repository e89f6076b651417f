"""What the loop reads of its steps: where it comes from, and what it costs, which is said once."""

import logging
from collections.abc import Sequence
from typing import Protocol

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.capture import Ref, user_line
from csrun.pytorch.parts import Part
from csrun.pytorch.script_run import ScriptRun
from csrun.pytorch.tokens import Owner, Slot, StepValues, Token

CHECKED_STEPS = 3  # of each part of the loop, in which forward's Python runs
READ_IN_A_ROW = 20  # steps, before it is said

log = logging.getLogger("csrun")


class Loop(Owner, Protocol):
    """The Session, as it is asked for the step that the loop is in."""

    def part_of(self, values: StepValues) -> Part | None:
        """That of the step, if it is this one."""

    def run_early(self, values: StepValues) -> None:
        """Have it run before `optimizer.step()`, if it is this one."""


class Reading:
    """The values of a loop's steps that run on the wafer."""

    def __init__(self, loop: Loop, run: ScriptRun) -> None:
        self._loop, self._run = loop, run
        self._in_a_row, self._last = 0, -1

    def read(self, step: StepValues, slot: Slot) -> torch.Tensor:
        """The numbers of a value."""
        if slot.is_loss:
            return torch.tensor(self.loss(step), dtype=slot.meta.dtype)
        self.want([Token(self._loop, step, slot)])
        found = step.outputs[slot.value]
        self._run.replay.keep(step, slot.value, found)
        return found

    def loss(self, step: StepValues) -> float:
        """The loss of a step, which has run then."""
        if step.loss is None:
            self._run_through(step)
        if step.loss is None:
            raise UsageError(
                f"{user_line()}: the loss of step {step.number + 1}, which an earlier run has "
                "taken, is not kept: begin in a new model_dir"
            )
        return step.loss

    def want(self, tokens: Sequence[Token]) -> None:
        """Have values; where the program does not give them so far, it is compiled once more."""
        wanted = [t for t in tokens if not t.slot.is_loss]
        wanted = [t for t in wanted if t.slot.value not in t.step.outputs]
        run = self._run
        for token in list(wanted):
            if (kept := run.replay.value(token.step, token.slot.value)) is not None:
                token.step.outputs[token.slot.value] = kept
                wanted.remove(token)
        if not wanted:
            return
        if over := [t.step.number + 1 for t in wanted if t.step.is_over]:
            raise UsageError(
                f"{user_line()}: a value of step {over[0]} is read, whose turn is over: "
                "read what is no loss before the loss and before the next batch, or in one of the "
                f"first {CHECKED_STEPS} steps"
            )
        self._run_with(sorted(wanted, key=lambda token: token.step.number))

    def _run_with(self, wanted: Sequence[Token]) -> None:
        """Run steps up to the last one that values are wanted of, so that they give them."""
        run = self._run
        queued = run.unqueue(wanted[0].step)
        run.flush()
        parts = {step.values: step.part for step in queued}
        new: dict[Part, dict[Ref, None]] = {}
        for token in wanted:
            part = parts.get(token.step) or self._loop.part_of(token.step)
            if part is None:
                raise UsageError(
                    f"{user_line()}: a value of step {token.step.number + 1} is read, which the "
                    "loop has left before it was computed: read it in its step"
                )
            if token.slot.value not in part.outputs:
                new.setdefault(part, {})[token.slot.value] = None
        for part, values in new.items():
            run.give(part, values)
        steps = {token.step for token in wanted}
        for step in queued:
            run.requeue(step)
            if step.part.trains and step.values in steps:
                run.flush()  # of training steps the last one alone gives more than its loss
        self._run_through(wanted[-1].step)

    def _run_through(self, values: StepValues) -> None:
        """Run up to a step, and that one, too."""
        self._loop.run_early(values)
        self._run.flush()
        self._count(values.number)

    def _count(self, step: int) -> None:
        self._in_a_row = self._in_a_row + 1 if step == self._last + 1 else 0
        self._last = step
        if self._in_a_row == READ_IN_A_ROW:
            log.warning(
                f"{user_line()}: the loop reads a value in each step, so that none is run ahead: "
                "an order to the wafer for each; read it every 50 steps to run up to 256 at a time"
            )
