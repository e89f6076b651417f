"""Orders of the chief: splitting of a run into orders; evaluation and prediction."""

from collections.abc import Callable
from time import perf_counter

from csrun.base.errors import CsrunError
from csrun.context import Progress
from csrun.executable import MOST_STEPS, Plan
from csrun.runtime.chief.machine import OrderedSteps, Program
from csrun.runtime.step.results import HostCall, Mean, StepResult, result_slots
from csrun.runtime.wire.messages import Results, StepOrder, StepsDone

# seconds of an order: short enough for progress and Ctrl-C, long compared with its messages
ORDER_S = 0.2

Show = Callable[[Progress], None]


class NotFiniteLossError(CsrunError):
    """Non-finite loss of a step, which therefore has no update. loss: its value."""

    def __init__(self, message: str, loss: float) -> None:
        super().__init__(message)
        self.loss = loss


class OrderSplitter:
    """Splitter of a run into orders that end at boundaries and are short enough for signals."""

    def __init__(self, machine: Program, last: int | None) -> None:
        self._machine = machine
        self._last = last
        self._most = result_slots(machine.plan)
        self._seconds_per_step = 0.0

    def run_next(self, steps: StepOrder, boundaries: tuple[int, ...] = ()) -> StepsDone:
        """Run the first of these steps, up to the nearest multiple of a boundary or fewer."""
        return self.finish(self.begin(steps, boundaries))

    def begin(self, steps: StepOrder, boundaries: tuple[int, ...]) -> OrderedSteps:
        """Start steps as `run_next`, without waiting for them."""
        first, accumulation = steps.first, steps.accumulation
        counts = [every - first % every for every in boundaries]
        if accumulation is not None:
            counts = [accumulation.batches_of(each) for each in counts]
        count = min([self._most, steps.count, *counts])
        if self._last is not None:
            count = min(count, self._last - first)
        if self._seconds_per_step:
            count = min(count, max(1, int(ORDER_S / self._seconds_per_step)))
        else:
            count = min(count, 1)  # the time of a step is unknown
        if accumulation is not None:
            accumulation = accumulation.first(count)
        return self._machine.order(StepOrder(first, count, steps.keeps_all, accumulation))

    def finish(self, order: OrderedSteps) -> StepsDone:
        """Wait for the steps that `begin` has started."""
        started = perf_counter()
        done = order.finish()
        seconds = max(done.seconds, perf_counter() - started)
        self._seconds_per_step = seconds / max(done.done, 1)
        return done


def no_counted_labels(plan: Plan, number: int) -> str:
    """Return the message that no label of the batch counts, for this index of the batch's
    counts.
    """
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
    """Compute `batches` batches forward (all if None); return the mean loss and host_call's
    metrics.

    step: global step of the checkpoint being evaluated.
    losses: if the loss is a sum of means over different kinds of labels, the host call that returns
        these means; the result is their sum.

    The loss is the mean over all samples or labels that count; NaN if none does.

    Raises: NotFiniteLossError for the loss of a batch
    """
    orders, index, loss = OrderSplitter(machine, batches), 0, Mean()
    while batches is None or index < batches:
        done = orders.run_next(StepOrder(index, MOST_STEPS))
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
                why += f": {no_counted_labels(machine.plan, done.uncounted)}"
            raise NotFiniteLossError(why, done.bad_loss)
        if done.finished:
            break
    results = {"global_step": float(step), **(host.values() if host else {})}
    if machine.plan.loss_buffer is not None:
        results["loss"] = sum(losses.values().values()) if losses else loss.value
    return results


def predict(
    machine: Program, batches: int | None, take: Callable[[StepResult], None], show: Show
) -> int:
    """Compute `batches` batches forward (all if None), pass each result to `take`; return the
    number of samples.
    """
    orders, index, samples = OrderSplitter(machine, batches), 0, 0
    while batches is None or index < batches:
        done = orders.run_next(StepOrder(index, MOST_STEPS))
        for slot in range(done.done):
            take(machine.result(slot, index + slot))
        index, samples = index + done.done, samples + done.samples
        show(Progress("predicting", index, batches or 0, unit="batches"))
        if done.finished:
            break
    return samples
