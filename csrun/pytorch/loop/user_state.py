"""The user's model and optimizer in a Session's block, while the run's store has their values."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.optimizers.state_proxy import StateProxy, state_written_error
from csrun.pytorch.run.script_run import ScriptRun


class OpenLoop(Protocol):
    """The loop of the block, as used here."""

    has_begun: bool

    @property
    def step(self) -> LoopStep | None:
        """The current step."""

    def end_step(self) -> None:
        """End it."""

    def settle_updates(self) -> None:
        """Make the store have the weights of the script's current line."""


class UserState:
    """State of the model and of the optimizer, as the loop reads and writes it.

    optimizer_state: the script's `optimizer.state`, in a block that trains.
    """

    def __init__(
        self,
        loop: OpenLoop,
        run: ScriptRun,
        model: torch.nn.Module,
        optimization: Optimization | None,
    ) -> None:
        self._loop, self._run, self._model = loop, run, model
        self._optimization = optimization
        self.optimizer_state: StateProxy | None = None

    @property
    def has_begun(self) -> bool:
        """True from the block's first step on."""
        return self._loop.has_begun

    @property
    def is_replayed(self) -> bool:
        """True in steps that an earlier run has computed, whose weights are gone."""
        return self._run.replay.is_on

    @property
    def is_in_store(self) -> bool:
        """True if only the store has the values: outside of a recorded step."""
        step = self._loop.step
        is_recorded = step is not None and step.recorded is not None and not step.status.is_over
        return self.has_begun and not is_recorded

    @property
    def are_lost(self) -> bool:
        """True if the values of the script's last step are lost, since an earlier run computed
        it.
        """
        return self._run.replay.has_lost_weights

    @property
    def is_stale(self) -> bool:
        """True if the user's tensors may be older than the script's last step."""
        return self.is_in_store or self.are_lost

    def note_write(self, name: str) -> bool:
        """Note that the loop is about to write a tensor of the model.

        False in steps that an earlier run has computed: their checkpoint includes the write, and
        only integer buffers have values.

        Raises: UsageError within a step, whose gradients belong to the weights before
        """
        self._loop.settle_updates()
        if self._evaluates:
            self._loop.end_step()
        step = self._loop.step
        if step is not None and not step.status.is_over:
            raise UsageError(
                f"{user_line()}: {name} is written between the loop's batch and optimizer.step(): "
                "write it after optimizer.step(), before the next batch is taken"
            )
        self._run.users.keep_weights()
        self._run.are_written = True
        return not self.is_replayed

    def note_shared(self) -> None:
        """Note that the loop has an array of weights, which it may write until the next step."""
        if self.is_in_store:
            self._run.users.keep_weights()
            self._run.are_written = True

    def copy_back(self) -> None:
        """Copy the store's values to the user's objects.

        An open evaluation step is ended first if its batch has no loader, if it is recorded, or if
        its forward has written buffers.

        Raises: UsageError within another step that is recorded, whose gradients need the weights
        """
        self._loop.settle_updates()
        step = self._loop.step
        is_recorded = step is not None and not self.is_in_store
        is_early = is_recorded and not self._run.users.are_current
        is_pushed = step is not None and step.batches.is_pushed
        if self._evaluates and (is_pushed or is_early or self._has_written_buffers):
            self._loop.end_step()
        elif is_early:
            raise UsageError(
                f"{user_line()}: the state of the model or optimizer is read between the model's "
                "call and optimizer.step(): read it after optimizer.step()"
            )
        self._run.flush()
        self._run.copy_back()

    @property
    def _has_written_buffers(self) -> bool:
        """True if the open step is an evaluation whose forward has written buffers."""
        step = self._loop.step
        variant = None if step is None or step.status.is_over else step.variant
        return bool(variant and variant.evaluated_buffers and step and step.has_called_model)

    @property
    def _evaluates(self) -> bool:
        """True in a step of an evaluation.

        The step may still be open after the pass: a loop that counts batches does not exhaust the
        iterator.
        """
        step = self._loop.step
        if step is None or step.status.has_gradients:
            return False
        is_pushed, is_known = step.batches.is_pushed, step.variant is not None
        if is_known and not is_pushed:
            return not step.trains
        return not self._model.training

    def set_counters(self) -> None:
        """Set the model's integer buffers to their values at this line of the script.

        No step need have run, since only the loop counts them.
        """
        step = self._loop.step
        has_counted = step is not None and not step.status.is_queued and step.has_called_model
        ahead = step.counters if step is not None and has_counted else {}
        self._run.users.integers.write(ahead=ahead)

    def check_writes(self) -> None:
        """Check the optimizer's state for writes, at the beginning of a step or the end of the
        block.

        Raises: UsageError if the script has written it
        """
        if self.optimizer_state is not None:
            self.optimizer_state.check_writes()

    def load_optimizer_state(self, load: Callable[[], None]) -> None:
        """Handle the loop's call of `optimizer.load_state_dict`, by `load`.

        Raises: UsageError after the block's first step, or for state that the store does not have
        """
        assert self.optimizer_state is not None, "taken over of a training"
        assert self._optimization is not None, "taken over of a training"
        self.optimizer_state.load(load)
        self._optimization.check_options()
        self._run.require_known_state()

    def require_unchanged_state(self) -> None:
        """Raises: UsageError if the script has written the optimizer's state"""
        if not self._run.users.has_unchanged_optimizer():
            raise state_written_error()

    def with_memory(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the model's state_dict, with numbers also for a model without memory."""
        return self._run.users.state_dict(state, self._run.saved)
