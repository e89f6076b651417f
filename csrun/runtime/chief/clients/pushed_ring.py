"""Ring by which the chief sends batches that it makes itself to the wafers."""

from csrun.base.run_config import RunSettings
from csrun.executable import Plan
from csrun.executable.arrays import Batch
from csrun.runtime.step.pushed import count_pushed
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.ring import RingWriter, ring_slots_for

RINGS = 1  # ring slots of a program with pushed batches


class PushedRing:
    """Chief's end of the ring; control: channel to a wafer; readers: number of wafers."""

    def __init__(self, plan: Plan, settings: RunSettings, control: Channel, readers: int) -> None:
        self._inputs, self._settings = plan.inputs, settings
        slots = ring_slots_for(RINGS, plan.inputs)
        self._writer = RingWriter(plan.inputs, slots, control, readers)
        self._count = 0

    @property
    def descriptors(self) -> list[tuple[int, int, int]]:
        """Descriptors for each reader: memory, filled, free."""
        memory, *counters = self._writer.descriptors
        pairs = zip(counters[::2], counters[1::2], strict=True)
        return [(memory, filled, free) for filled, free in pairs]

    def push(self, batch: Batch) -> None:
        """Send the next batch to the wafers.

        Raises: CsrunError for a label or an index out of range
        """
        made = count_pushed(batch, self._inputs, self._count, self._settings)
        slot = self._writer.reserve()
        for array, given in zip(slot.arrays, batch, strict=True):
            array[...] = given
        self._writer.publish(made, self._count)
        self._count += 1

    def close(self) -> None:
        """Free the ring's memory."""
        self._writer.close()
