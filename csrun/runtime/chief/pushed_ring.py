"""Ring by which the chief hands batches that it makes itself to the wafers."""

from csrun.base.run_config import RunSettings
from csrun.executable import Plan
from csrun.executable.arrays import Batch
from csrun.runtime.step.pushed import count_pushed
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.ring import RingWriter, ring_slots_for

RINGS = 1  # of a program whose batches are pushed


class PushedRing:
    """The chief's end. control: a channel to a wafer; readers: how many wafers read it."""

    def __init__(self, plan: Plan, settings: RunSettings, control: Channel, readers: int) -> None:
        self._inputs, self._settings = plan.inputs, settings
        slots = ring_slots_for(RINGS, plan.inputs)
        self._writer = RingWriter(plan.inputs, slots, control, readers)
        self._count = 0

    @property
    def descriptors(self) -> list[tuple[int, int, int]]:
        """Descriptors of each reader: memory, filled, free."""
        memory, *counters = self._writer.descriptors
        pairs = zip(counters[::2], counters[1::2], strict=True)
        return [(memory, filled, free) for filled, free in pairs]

    def push(self, batch: Batch) -> None:
        """Hand the next batch to the wafers.

        Raises: CsrunError for a label or an index out of range
        """
        made = count_pushed(batch, self._inputs, self._count, self._settings)
        slot = self._writer.reserve()
        for array, given in zip(slot.arrays, batch, strict=True):
            array[...] = given
        self._writer.publish(made, self._count)
        self._count += 1

    def close(self) -> None:
        """Let the ring's memory go."""
        self._writer.close()
