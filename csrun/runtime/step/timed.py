"""Timing of the steps' wait for weights: two clock reads at each visit's entry.

Of a wafer that stands still while it waits that time is its own (`run_time_clock`).
"""

from collections.abc import Callable, Sequence
from time import perf_counter_ns

from csrun.executable import StepState
from csrun.runtime.step.trace import SpanKind, SpanRecorder
from csrun.runtime.step.updates import Updates
from csrun.runtime.step.weights import Weights
from csrun.runtime.wire.run_time_clock import awake_s

WHOLE_STEP = -1  # in a visit's place, where minibatches flow through all of them


class TimedWeights:
    """Weights, and how long `enter` and `settle` took since that was read last.

    weights_s: of visits but the first, and of `wait`; first_group_s: of the first, whose updates
    are the last of the step before, and of settling, which waits for them at the end of an order.
    Neither counts what a checkpoint held back.
    """

    def __init__(self, weights: Weights, recorder: SpanRecorder) -> None:
        self._weights, self.recorder = weights, recorder
        self.weights_s = self.first_group_s = self._read_s = 0.0

    @property
    def held_s(self) -> float:
        return self._weights.held_s

    def begin(self) -> None:
        """The visits of a step that is traced come."""

    def enter(self, visit: int) -> None:
        """Have the weights of the visit's groups where its function reads them."""
        taken = self._timed(lambda: self._weights.enter(visit))
        if visit:
            self.weights_s += taken
        else:
            self.first_group_s += taken

    def deliver(self, group: int, step: StepState) -> None:
        """The group's gradients of this step are complete in the store."""
        self._weights.deliver(group, step)

    def loss_scale(self, step: int) -> float:
        """Factor of the loss of the step that begins."""
        found = 1.0

        def look() -> None:
            nonlocal found
            found = self._weights.loss_scale(step)

        self.first_group_s += self._timed(look)
        return found

    def settle(self) -> None:
        """Wait until every delivered gradient has become an update."""
        self.first_group_s += self._timed(self._weights.settle)

    def wait(self, until: Callable[[], None]) -> None:
        """Have a step wait for what others do with its gradients."""
        self.weights_s += self._timed(until)

    def leave(self) -> None:
        """Another program runs next."""
        self._weights.leave()

    def resume(self) -> None:
        """Resume: it runs next, and another one has run before it."""
        self._weights.resume()

    def read(self) -> tuple[float, float, float]:
        """`weights_s`, `first_group_s` and what a checkpoint held back; they begin again.

        A MemoryX on another machine tells of what it held back later than that was waited for,
        perhaps in the other one of the two: then this one is less than none.
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
    """Give a group's gradients to the learning algorithm, which is traced; as `Updates.deliver`."""
    return _recorded(lambda: updates.deliver(group, step), group, step, recorder)


def applied(
    updates: Updates, squares: float, step: StepState, recorder: SpanRecorder
) -> Sequence[int]:
    """Have all groups updated, which is traced as the last one's; as `Updates.apply`."""
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
    """The weights with what records their visits, if any are to be.

    is_resident: they are where they are computed with, so that none come and updates are made here.
    """
    if recorder.steps is None:
        return TimedWeights(weights, recorder)
    return TracedWeights(weights, recorder, is_resident)


class TracedWeights(TimedWeights):
    """The same, which records visits as they come and go, of the steps that are traced."""

    def __init__(self, weights: Weights, recorder: SpanRecorder, is_resident: bool) -> None:
        super().__init__(weights, recorder)
        self._is_resident = is_resident
        self._delivered = SpanKind.UPDATE if is_resident else SpanKind.GRADIENTS
        self._visit = WHOLE_STEP
        self._began_ns: int | None = None  # of computing the visit

    def begin(self) -> None:
        """The visits of a step that is traced come."""
        self._visit, self._began_ns = WHOLE_STEP, perf_counter_ns()

    def enter(self, visit: int) -> None:
        """Have the weights of the visit's groups where its function reads them."""
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
        """The group's gradients of this step are complete in the store."""
        if not self.recorder.is_on:
            super().deliver(group, step)
            return
        self._end()
        began = perf_counter_ns()
        super().deliver(group, step)
        self.recorder.add(self._delivered, group, began)

    def settle(self) -> None:
        """Wait until every delivered gradient has become an update."""
        began = perf_counter_ns()
        super().settle()
        if self.recorder.is_on and not self._is_resident:
            self.recorder.add(SpanKind.SETTLE, 0, began)

    def _end(self) -> None:
        if self._began_ns is not None and self.recorder.is_on:
            self.recorder.add(SpanKind.COMPUTE, self._visit, self._began_ns)
        self._began_ns = None
