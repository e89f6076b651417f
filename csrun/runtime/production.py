"""What making batches costs a streamer, for the headers of their slots."""

from csrun.data.stages import StageClock
from csrun.runtime.wire.ring import UNKNOWN_STAGE, Production


class Meter:
    """Numbers the stages that a reader's clock names, and tells what each batch cost."""

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._numbers: dict[str, int] = {}
        self._batches = 0

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages seen so far, in the order of their numbers."""
        self._number_stages()
        return tuple(self._numbers)

    def batch(self, ns: int) -> Production:
        """One more batch took so long to make."""
        self._batches += 1
        self._number_stages()
        slowest = self._clock.slowest()
        if slowest is None:
            return Production(ns)
        name, time = slowest
        return Production(
            ns, self._numbers.get(name, UNKNOWN_STAGE), int(time.wall_s * 1e9 / self._batches)
        )

    def _number_stages(self) -> None:
        for name in self._clock.stages:
            self._numbers.setdefault(name, len(self._numbers))
