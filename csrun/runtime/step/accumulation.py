"""Gradient accumulation: a step takes several batches, each computed in an order of the chief's."""

from collections.abc import Iterator

from csrun.runtime.wire.messages import StepOrder


def places(order: StepOrder) -> Iterator[tuple[int, int, bool]]:
    """Return for each batch its global step, its number in that, and whether it is the last."""
    first, count, gathering = order.first, order.count, order.gathering
    if gathering is None:
        yield from ((first + number, 0, True) for number in range(count))
        return
    step, batch = first, gathering.before
    for ends in gathering.ends[:count]:
        yield step, batch, ends
        step, batch = (step + 1, 0) if ends else (step, batch + 1)
