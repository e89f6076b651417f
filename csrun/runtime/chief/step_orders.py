"""The chief's orders: a machine that takes steps, and runs of it that leave no trace."""

from collections.abc import Callable
from time import perf_counter

from csrun.base.errors import CsrunError
from csrun.context import Progress
from csrun.executable import MOST_STEPS, Plan
from csrun.runtime.chief.machine import Ordered, Program
from csrun.runtime.step.results import HostCall, Mean, StepResult, result_slots
from csrun.runtime.wire.messages import Results, StepOrder, StepsDone

ORDER_S = 0.2  # an order's length: short enough for progress and Ctrl-C, long to its messages

Show = Callable[[Progress], None]


class OrderSplitter:
    """Splits a run into orders: up to the next boundary, and short enough to stay responsive."""

    def __init__(self, machine: Program, last: int | None) -> None:
        self._machine = machine
        self._last = last
        self._most = result_slots(machine.plan)
        self._seconds_per_step = 0.0

    def give(self, steps: StepOrder, boundaries: tuple[int, ...] = ()) -> StepsDone:
        """Run the first of these steps: to the nearest multiple of a boundary, or less."""
        return self.finish(self.begin(steps, boundaries))

    def begin(self, steps: StepOrder, boundaries: tuple[int, ...]) -> Ordered:
        """Order steps as by `give`, without waiting for them."""
        first, gathering = steps.first, steps.gathering
        counts = [every - first % every for every in boundaries]
        if gathering is not None:
            counts = [gathering.batches_of(each) for each in counts]
        count = min([self._most, steps.count, *counts])
        if self._last is not None:
            count = min(count, self._last - first)
        if self._seconds_per_step:
            count = min(count, max(1, int(ORDER_S / self._seconds_per_step)))
        else:
            count = min(count, 1)  # nobody knows yet how long a step takes
        if gathering is not None:
            gathering = gathering.first(count)
        return self._machine.order(StepOrder(first, count, steps.keeps_all, gathering))

    def finish(self, order: Ordered) -> StepsDone:
        """Wait for what `begin` has ordered."""
        started = perf_counter()
        done = order.finish()
        seconds = max(done.seconds, perf_counter() - started)
        self._seconds_per_step = seconds / max(done.done, 1)
        return done


def nothing_counts(plan: Plan, number: int) -> str:
    """Say so of the labels of this number among a batch's counts."""
    ranges = [(spec.name, one.ignore_index) for spec in plan.inputs for one in spec.labels]
    name, ignored = ranges[number]
    return f"all labels of {name} equal ignore_index ({ignored}), so the loss is undefined"


def evaluate(
    machine: Program,
    step: int,
    batches: int | None,
    host: HostCall | None,
    show: Show,
    losses: HostCall | None = None,
) -> Results:
    """Run `batches` batches forward (all when None); the mean loss and host_call's metrics.

    `step` is the global step of the checkpoint being evaluated. The loss is the mean over what
    counts in all batches, NaN when nothing does; where it is a sum of means over labels of
    different kinds, `losses` make them, and it is the sum of theirs.
    """
    orders, index, loss = OrderSplitter(machine, batches), 0, Mean()
    while batches is None or index < batches:
        done = orders.give(StepOrder(index, MOST_STEPS))
        for slot in range(done.done):
            result = machine.result(slot, index + slot)
            loss += Mean(result.loss_sum, result.count)
            for means in (host, losses):
                if means:
                    means.take(result)
        index += done.done
        show(Progress("evaluating", index, batches or 0, unit="batches"))
        if done.bad_loss is not None:
            why = f"loss is {done.bad_loss} at batch {index} of the evaluation"
            if done.uncounted is not None:
                why += f": {nothing_counts(machine.plan, done.uncounted)}"
            raise CsrunError(why)
        if done.finished:
            break
    results = {"global_step": float(step), **(host.values() if host else {})}
    if machine.plan.loss_buffer is not None:
        results["loss"] = sum(losses.values().values()) if losses else loss.value
    return results


def predict(
    machine: Program, batches: int | None, take: Callable[[StepResult], None], show: Show
) -> int:
    """Run `batches` batches forward (all when None), give each result to `take`; the samples."""
    orders, index, samples = OrderSplitter(machine, batches), 0, 0
    while batches is None or index < batches:
        done = orders.give(StepOrder(index, MOST_STEPS))
        for slot in range(done.done):
            take(machine.result(slot, index + slot))
        index, samples = index + done.done, samples + done.samples
        show(Progress("predicting", index, batches or 0, unit="batches"))
        if done.finished:
            break
    return samples
