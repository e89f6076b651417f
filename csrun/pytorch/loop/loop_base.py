"""State of a Session's loop that its steps share, and the queue into which they go."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from csrun.pytorch.gradients.deferred import Gradients
from csrun.pytorch.gradients.edits import Edit
from csrun.pytorch.guards import Guards
from csrun.pytorch.loop.gradient_accumulation import GradientAccumulation
from csrun.pytorch.loop.host_calls import HostCalls
from csrun.pytorch.loop.late_calls import late_calls
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.loop.readback import Readback
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.loop.revalidation import Revalidations
from csrun.pytorch.loop.scaled_loss import ScaledLoss
from csrun.pytorch.loop.script_steps import ScriptSteps
from csrun.pytorch.loop.user_state import UserState
from csrun.pytorch.loop.variant_cache import Key, VariantCache
from csrun.pytorch.loop.weight_guard import WeightCalls, WeightGuard
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.record.reuse.operator_cache import CachedOperators
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.loop_writes import UntrackedWrites
from csrun.pytorch.step.mutation_counters import Modes
from csrun.pytorch.step.queued_step import QueuedStep, QueuedWork
from csrun.pytorch.step.step_outputs import FindGradients, StepOutputs
from csrun.pytorch.step.step_status import StepProgress
from csrun.pytorch.step.tokens import LazyTensor
from csrun.pytorch.step.variant import StepVariant


class LoopBase:
    """Parts of a loop, used by its steps and its calls.

    line: source line of the Session; a later Session on that line shares its variants.
    forward: the model's own.
    recorded_for: reason why all steps are recorded; empty if only the first ones are.
    user: state of the user's objects.
    watch: guards the model's tensors between steps.
    scaled_loss: scaling by GradScalers.
    """

    RECORDED: ClassVar[type[RecordedStep]] = RecordedStep
    HAS_UPDATES: ClassVar = False  # in its steps
    TAKES_ARGUMENTS: ClassVar = False  # also if a loader gives the batch

    def __init__(
        self,
        run: ScriptRun,
        line: str,
        model: torch.nn.Module,
        optimization: Optimization | None,
        forward: Callable[..., Any],
        recorded_for: str,
    ) -> None:
        self._run, self._model, self._optimization, self._line = run, model, optimization, line
        self._trainable = list(model.parameters())
        self._variants = VariantCache(
            run,
            (line, optimization is not None),
            model,
            lambda: self._guards.changed,
            recorded_for,
            has_updates=self.HAS_UPDATES,
        )
        self._step: LoopStep | None = None
        self._untracked = UntrackedWrites()
        self._known_operators: dict[Key, CachedOperators] = {}  # by part of the loop
        self.has_begun = self._is_over = False
        self._script_steps = ScriptSteps(run)
        self.user = UserState(self, run, model, optimization)
        self.watch = WeightGuard(model, self.user)
        sets = self.watch.module_sets
        self._guards = Guards(model, sets.of_forward(forward), sets)
        self._forward = late_calls.within(self._guards.forward)
        self._modes = Modes(model, self.watch.sets)
        trained = () if optimization is None else optimization.parameters
        self._gradients = Gradients(
            self, model, trained, self.watch.name_of, self.watch.sets, run.left_gradients
        )
        self._finder: tuple[StepVariant, FindGradients] | None = None  # of the last variant
        self.scaled_loss = ScaledLoss(run, optimization)
        self._accumulation = GradientAccumulation(model, optimization, self._gradients)
        self.readback = Readback(self, run)
        self._host_calls = HostCalls(run, model, forward)
        self._revalidations = Revalidations(model, run, self.watch.module_sets)
        self._weight_calls = WeightCalls(self._match_weight_call)

    @property
    def step(self) -> LoopStep | None:
        """The current step."""
        return self._step

    @property
    def accumulates(self) -> bool:
        """True if a step may have several batches."""
        return self._run.accumulates

    def _state(self) -> tuple[tuple[bool, ...], int]:
        """Return the modes of the model's modules and the state of its guards."""
        return self._modes(), self._guards.state()

    def _take_groups(self) -> None:
        """Update groups that the loop has added to the optimizer, from this step on."""
        optimization = self._optimization
        if optimization is None or not optimization.has_new_groups:
            return
        self._run.flush()
        added = optimization.take_groups()
        self._gradients.add_optimized(added)
        self._accumulation.add_optimized(added)

    def _queue(
        self, step: LoopStep, numbers: tuple[float, ...], work: QueuedWork = QueuedWork.STEP
    ) -> None:
        assert step.variant is not None, "the step has a variant"
        run, place, inputs = self._run, step.place, None
        if work is QueuedWork.UPDATE:
            place += 1
        else:
            step.status.advance(StepProgress.QUEUED)
            step.numbers = numbers
            if step.recorded is not None:
                run.read_forward_writes(step.recorded.written_weights, step.recorded.live_counters)
            if counters := step.counters:
                run.users.integers.count(run.replay.done + 1, counters, run.replay.step)
            inputs = step.inputs if step.variant.batches.is_pushed else None
        run.queue(QueuedStep(step.variant, step.outputs, step.batch, numbers, place, work, inputs))

    def write_weight(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Make a write of the loop into weights between two steps, by numbers."""
        return self.watch.write(func, args, kwargs)

    # What the loop does: `LoopSteps` has its steps, `SessionLoop` its calls.

    def end_step(self) -> None:
        """End the current step, if one is open."""
        raise NotImplementedError

    def settle_updates(self) -> None:
        """Make the store have the weights of the script's current line."""

    def apply(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Handle a call of a PyTorch function on tokens."""
        raise NotImplementedError

    def backward(self, token: LazyTensor) -> None:
        """Handle the loop's call of `backward()` on a token."""
        raise NotImplementedError

    def norm_edit_of(self, outputs: StepOutputs) -> Edit | None:
        """Return the edit that computes the norm by which gradients are clipped, or None."""
        raise NotImplementedError

    def run_early(self, outputs: StepOutputs, *, with_update: bool = False) -> None:
        """Queue the current step before `optimizer.step()`, if it has these outputs.

        with_update: queue its update, too.
        """
        raise NotImplementedError

    def _later(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return a lazy result; write into the loop's own tensors at once."""
        raise NotImplementedError

    def _match_weight_call(self, *call: Any) -> Any:
        raise NotImplementedError

    def _match_call(
        self,
        name: str,
        func: Any,
        args: Any,
        kwargs: Any,
        leaves: list[Any],
        how: tuple[Any, ...],
    ) -> Any:
        """Return the results of the matching call of step 1, else None."""
        raise NotImplementedError
