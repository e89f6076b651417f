"""Measurement of the steps' waits for weights: two clock reads at each visit's entry.

Waits are measured with a clock that stops while the process is stopped (`run_time_clock`).
"""

from collections.abc import Callable, Sequence
from time import perf_counter_ns

from csrun.executable import StepState
from csrun.runtime.step.trace import SpanKind, SpanRecorder
from csrun.runtime.step.updates import Updates
from csrun.runtime.step.weights import Weights
from csrun.runtime.wire.run_time_clock import awake_s

WHOLE_STEP = -1  # in place of a visit, if minibatches flow through all of them


class TimedWeights:
    """Weights that measure the time in `enter` and `settle` since the last `read`.

    weights_s: waits of all visits but the first, and of `wait`.
    first_group_s: waits of the first visit, whose updates are the previous step's last ones, and of
        settling, which waits for them at the end of an order.
    Neither includes the time for which a checkpoint held updates back.
    """

    def __init__(self, weights: Weights, recorder: SpanRecorder) -> None:
        self._weights, self.recorder = weights, recorder
        self.weights_s = self.first_group_s = self._read_s = 0.0

    @property
    def held_s(self) -> float:
        return self._weights.held_s

    def begin(self) -> None:
        """Begin a traced step."""

    def enter(self, visit: int) -> None:
        """Make the weights of the visit's groups available to its function."""
        weights = self._weights
        began, held_s = awake_s(), weights.held_s
        weights.enter(visit)
        taken = awake_s() - began - (weights.held_s - held_s)
        if visit:
            self.weights_s += taken
        else:
            self.first_group_s += taken

    def deliver(self, group: int, step: StepState) -> None:
        """Deliver the group's gradients of this step, which are complete."""
        self._weights.deliver(group, step)

    def loss_scale(self, step: int) -> float:
        """Return the loss scale of the step that begins."""
        found = 1.0

        def read_scale() -> None:
            nonlocal found
            found = self._weights.loss_scale(step)

        self.first_group_s += self._timed(read_scale)
        return found

    def settle(self) -> None:
        """Wait until every delivered gradient has been applied."""
        self.first_group_s += self._timed(self._weights.settle)

    def wait(self, until: Callable[[], None]) -> None:
        """Measure a wait of a step for the use of its gradients elsewhere."""
        self.weights_s += self._timed(until)

    def leave(self) -> None:
        """Release the weights: another program runs next."""
        self._weights.leave()

    def resume(self) -> None:
        """Resume after another program has run."""
        self._weights.resume()

    def read(self) -> tuple[float, float, float]:
        """Return `weights_s`, `first_group_s` and the time of checkpoints, and reset them.

        A MemoryX on another machine reports the time of checkpoints later than the wait, perhaps
        after the other kind of wait; that value can then be negative.
        """
        weights_s, first_group_s, held_s = self.weights_s, self.first_group_s, self._weights.held_s
        found = (
            max(0.0, weights_s + min(0.0, first_group_s)),
            max(0.0, first_group_s + min(0.0, weights_s)),
            held_s - self._read_s,
        )
        self.weights_s, self.first_group_s, self._read_s = 0.0, 0.0, held_s
        return found

    def _timed(self, wait: Callable[[], None]) -> float:
        began, held_s = awake_s(), self._weights.held_s
        wait()
        return awake_s() - began - (self._weights.held_s - held_s)


def updated(updates: Updates, group: int, step: StepState, recorder: SpanRecorder) -> Sequence[int]:
    """Deliver a group's gradients to the update, with a trace; as `Updates.deliver`."""
    return _recorded(lambda: updates.deliver(group, step), group, step, recorder)


def applied(
    updates: Updates, squares: float, step: StepState, recorder: SpanRecorder
) -> Sequence[int]:
    """Update all groups, traced as the last one's update; as `Updates.apply`."""
    last = updates.order[-1]
    return _recorded(lambda: updates.apply(squares, step), last, step, recorder)


def _recorded(
    update: Callable[[], Sequence[int]], group: int, step: StepState, recorder: SpanRecorder
) -> Sequence[int]:
    if not recorder.at(step.index):
        return update()
    began = perf_counter_ns()
    groups = update()
    recorder.add(SpanKind.UPDATE, group, began)
    return groups


def timed(weights: Weights, recorder: SpanRecorder, is_resident: bool) -> TimedWeights:
    """Return the weights with the recording of their visits, if steps are traced.

    is_resident: weights are used in place, so none are transferred and updates are made here.
    """
    if recorder.steps is None:
        return TimedWeights(weights, recorder)
    return TracedWeights(weights, recorder, is_resident)


class TracedWeights(TimedWeights):
    """The same, with spans of the visits of traced steps."""

    def __init__(self, weights: Weights, recorder: SpanRecorder, is_resident: bool) -> None:
        super().__init__(weights, recorder)
        self._is_resident = is_resident
        self._delivered = SpanKind.UPDATE if is_resident else SpanKind.GRADIENTS
        self._visit = WHOLE_STEP
        self._began_ns: int | None = None  # start of the visit's computation

    def begin(self) -> None:
        """Begin a traced step."""
        self._visit, self._began_ns = WHOLE_STEP, perf_counter_ns()

    def enter(self, visit: int) -> None:
        """Make the weights of the visit's groups available to its function."""
        if not self.recorder.is_on:
            super().enter(visit)
            return
        if self._visit != WHOLE_STEP:
            self._end()
        began = perf_counter_ns()
        super().enter(visit)
        self._visit, self._began_ns = visit, perf_counter_ns()
        if not self._is_resident:
            self.recorder.add(SpanKind.WEIGHTS, visit, began, self._began_ns)

    def deliver(self, group: int, step: StepState) -> None:
        """Deliver the group's gradients of this step, which are complete."""
        if not self.recorder.is_on:
            super().deliver(group, step)
            return
        self._end()
        began = perf_counter_ns()
        super().deliver(group, step)
        self.recorder.add(self._delivered, group, began)

    def settle(self) -> None:
        """Wait until every delivered gradient has been applied."""
        began = perf_counter_ns()
        super().settle()
        if self.recorder.is_on and not self._is_resident:
            self.recorder.add(SpanKind.SETTLE, 0, began)

    def _end(self) -> None:
        if self._began_ns is not None and self.recorder.is_on:
            self.recorder.add(SpanKind.COMPUTE, self._visit, self._began_ns)
        self._began_ns = None
