"""Verdict on a run's input pipeline, from wait times and production times.

The wafer takes batches from N streamers in turn, so each has the time of N steps to make a batch,
and the slowest one limits the rate. With t the time of a step without waits, and p the slowest
streamer's mean time to make a batch, the wafer never waits if p ≤ N·t.

Source: own design; the thresholds are those of the verdict's names
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from csrun.runtime.wire.messages import StepsDone

MODERATE_SHARE = 0.05  # share of the steps' time spent waiting for batches
BOUND_SHARE = 0.2
MARGIN = 1.125  # more streamers than the mean times require, since batches take different times
STRAGGLER_RATIO = 1.5  # ratio to the median above which a streamer is named as the only slow one


class Bound(StrEnum):
    """Degree to which the input delays the steps."""

    NOT = "not bound"
    MODERATE = "moderate"
    BOUND = "bound"


@dataclass(frozen=True)
class StreamerRate:
    """Rate of one streamer in batches per second, and its slowest stage.

    stage: index of the stage, -1 if unknown.
    stage_s: its time per batch.
    """

    streamer: int
    delivered: float
    stage: int
    stage_s: float


@dataclass(frozen=True)
class InputVerdict:
    """Effect of the input on the steps.

    asked: rate that the wafer would take from each streamer if it never waited.
    typical: rate of the median streamer.
    needed: number of streamers that would suffice if all were like the slowest one; like the median
        one if only one is slow.

    Units: batches per second
    """

    bound: Bound
    wait_share: float
    streamers: int
    needed: int
    demand: float
    typical: float
    slowest: StreamerRate

    @property
    def is_alone(self) -> bool:
        """Return whether the slowest streamer is much slower than most others."""
        return _is_straggler(self.slowest.delivered, self.typical)

    @property
    def is_fast_enough(self) -> bool:
        """Return whether all streamers are fast enough, so that batches are late for another
        reason.
        """
        return self.slowest.delivered >= self.demand


class InputUse:
    """Sums over a run, or a part of it, of the waits of its steps."""

    def __init__(self, streamers: int) -> None:
        self._sums = [_StreamerSum() for _ in range(streamers)]
        self._steps, self.seconds, self.wait_s = 0, 0.0, 0.0

    def add(self, done: StepsDone) -> None:
        self._steps += done.done
        self.seconds += done.seconds
        for use in done.input:
            self.wait_s += use.wait_s
            total = self._sums[use.streamer]
            total.batches += use.batches
            total.produce_s += use.produce_s
            total.stage, total.stage_s = use.slowest, use.slowest_s

    def verdict(self) -> InputVerdict | None:
        """Return the verdict; None before the first batch of a step."""
        rates = [total.rate(turn) for turn, total in enumerate(self._sums) if total.batches]
        if not rates or not self._steps:
            return None
        share = self.wait_s / self.seconds
        ordered = sorted(rates, key=lambda rate: rate.delivered)
        slowest, typical = ordered[0], ordered[len(ordered) // 2].delivered
        # Without waits: the rate of the steps if batches were always ready.
        batches = sum(total.batches for total in self._sums)
        asked_of_all = batches / max(self.seconds - self.wait_s, 1e-9)
        streamers = len(self._sums)
        usual = typical if _is_straggler(slowest.delivered, typical) else slowest.delivered
        return InputVerdict(
            _bound(share),
            share,
            streamers,
            streamers_needed(asked_of_all, usual),
            asked_of_all / streamers,
            typical,
            slowest,
        )


def streamers_needed(asked: float, delivered: float) -> int:
    """Return ceil(MARGIN · asked / delivered): the number of streamers that suffice for the rate.

    Units: batches per second; asked from all streamers together, delivered by one
    """
    return max(1, ceil(MARGIN * asked / delivered))


@dataclass
class _StreamerSum:
    batches: int = 0
    produce_s: float = 0.0
    stage: int = -1
    stage_s: float = 0.0

    def rate(self, streamer: int) -> StreamerRate:
        delivered = self.batches / max(self.produce_s, 1e-9)
        return StreamerRate(streamer, delivered, self.stage, self.stage_s)


def _is_straggler(delivered: float, typical: float) -> bool:
    return typical > STRAGGLER_RATIO * delivered


def _bound(share: float) -> Bound:
    if share > BOUND_SHARE:
        return Bound.BOUND
    return Bound.MODERATE if share >= MODERATE_SHARE else Bound.NOT
