"""Log of a run's input: warnings while it is slow, a verdict at the end, and its record."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from csrun.records import performance
from csrun.runtime.input_bound import Bound, InputUse, InputVerdict
from csrun.runtime.wire.messages import StepsDone

FIRST_WORD_S = 10.0  # steps before the first warning
WORD_S = 60.0  # seconds between two warnings
WORTH_A_WORD_S = 1.0  # shares of waiting below this are not a bottleneck
MOST_ADVISED = 64  # largest number of streamers that is recommended for one system

LOOK_AT_THE_STRAGGLER = "check its node and its shard of the data"
BATCHES_UNEVEN = "enough on average, so the cause is uneven batch times, busy CPUs or the network"
STREAM_REPLAYED = (
    "more streamers do not help because each makes all batches: shard the data (shard_files, "
    "csrun.data.shard_info)"
)

log = logging.getLogger("csrun")


@dataclass(frozen=True)
class Feeding:
    """Streamers of a machine's batches.

    streamers: their names, in the order of batches; none if the process of the steps makes them
        itself.
    stage: function from a stage's index to its name, None if unknown.
    options: launcher options that give a run a number of streamers.
    replayed: whether each streamer makes all batches, so that more streamers do not help.
    """

    streamers: tuple[str, ...] = ()
    stage: Callable[[int, int], str | None] = lambda streamer, stage: None
    options: Callable[[int], str] = lambda streamers: f"{streamers} streamer tasks"
    replayed: bool = False


class InputLog:
    """Accumulates the waits of a run's steps, and warns if they wait for input.

    straggler: the streamer that the latest warning named as the only slow one; empty after a while
        without a warning.
    """

    def __init__(self, feeding: Feeding) -> None:
        self._feeding = feeding
        self._whole = self._new()
        self._recent = self._new()
        self._due_s = FIRST_WORD_S
        self.straggler = ""

    def add(self, done: StepsDone) -> None:
        """Add steps; at most once a minute, log a warning about streamers."""
        self._whole.add(done)
        if not self._feeding.streamers:
            return
        self._recent.add(done)
        if self._recent.seconds >= self._due_s:
            self._log_use(self._recent)
            self._recent, self._due_s = self._new(), WORD_S

    def finish(self) -> performance.Input:
        """Log the verdict, and return the record."""
        self._log_use(self._whole)
        verdict = self._whole.verdict()
        if verdict is None:
            return performance.Input()
        return performance.Input(
            str(verdict.bound),
            verdict.wait_share,
            verdict.streamers,
            None if self._is_futile(verdict) else verdict.needed,
            self._stage(verdict),
        )

    def _new(self) -> InputUse:
        return InputUse(max(1, len(self._feeding.streamers)))

    def _log_use(self, use: InputUse) -> None:
        verdict, self.straggler = use.verdict(), ""
        if verdict is None or verdict.bound is Bound.NOT or use.wait_s < WORTH_A_WORD_S:
            return
        if verdict.is_alone:
            self.straggler = self._feeding.streamers[verdict.slowest.streamer]
        waited = f"the steps waited {verdict.wait_share:.0%} of their time for batches"
        why = self._why(verdict)
        log.warning(f"Input {verdict.bound}: {waited}: {why}; see cs_input_analyzer")

    def _why(self, verdict: InputVerdict) -> str:
        """Return one line with numbers and the remedy."""
        names, slowest = self._feeding.streamers, verdict.slowest
        who = names[slowest.streamer] if names else "this process"
        if len(names) > 1 and not verdict.is_alone:
            who = f"each of {len(names)} streamers"
        others = f" (the others {_rate(verdict.typical)})" if verdict.is_alone else ""
        delivered = f"{who} delivered {_rate(slowest.delivered)} batches/s{others}"
        rates = f"{delivered}, the wafer asked for {_rate(verdict.demand)}"
        stage = _stage_text(self._stage(verdict), slowest.stage_s, 1 / slowest.delivered)
        if names and verdict.is_fast_enough:
            return f"{rates}: {BATCHES_UNEVEN}"
        return f"{rates}: {stage}; {self._remedy(verdict)}"

    def _remedy(self, verdict: InputVerdict) -> str:
        if verdict.is_alone:
            return LOOK_AT_THE_STRAGGLER
        if self._is_futile(verdict):
            return STREAM_REPLAYED
        needed = verdict.needed
        if needed > MOST_ADVISED:
            step_ms = 1e3 / (verdict.demand * verdict.streamers)
            return f"a step takes only {step_ms:.2g} ms: use a larger batch or cheaper samples"
        if not self._feeding.streamers:  # one process makes a batch, then computes its step
            many = "1 streamer" if needed == 1 else f"{needed} streamers"
            return f"{many} in a csrun_wse run would overlap this with the steps"
        return f"{needed} streamers are needed ({self._feeding.options(needed)})"

    def _is_futile(self, verdict: InputVerdict) -> bool:
        """Return whether more streamers would not help."""
        return self._feeding.replayed and verdict.needed > max(1, verdict.streamers)

    def _stage(self, verdict: InputVerdict) -> str | None:
        return self._feeding.stage(verdict.slowest.streamer, verdict.slowest.stage)


def _stage_text(stage: str | None, stage_s: float, batch_s: float) -> str:
    """Describe a streamer's slowest stage."""
    if stage is None:
        return f"a batch takes {batch_s * 1e3:.3g} ms to make"
    return f"its stage '{stage}' takes {stage_s * 1e3:.3g} ms per batch"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
