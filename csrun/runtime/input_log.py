"""Log of a run's input: warnings while it is slow, a verdict at the end, and its record."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from csrun.records import performance
from csrun.runtime.input_bound import Bound, InputUse, InputVerdict
from csrun.runtime.wire.messages import StepsDone

FIRST_WORD_S = 10.0  # of steps: what is slow at once is said soon
WORD_S = 60.0  # of steps between two words
WORTH_A_WORD_S = 1.0  # less waiting than that is nobody's bottleneck
MOST_ADVISED = 64  # streamers; a job of more for one system is nobody's remedy

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

    streamers: their names, in turn; none when the process of the steps makes them itself.
    stage: the name of a streamer's stage by its number, None for an unknown one.
    options: the launcher's options that give a run so many streamers.
    replayed: whether each streamer makes all batches, so that more of them make no more.
    """

    streamers: tuple[str, ...] = ()
    stage: Callable[[int, int], str | None] = lambda streamer, stage: None
    options: Callable[[int], str] = lambda streamers: f"{streamers} streamer tasks"
    replayed: bool = False


class InputLog:
    """Adds up the steps of a run, and says it when they wait for their input.

    straggler: the streamer that the latest warning named alone; empty after a time without one.
    """

    def __init__(self, feeding: Feeding) -> None:
        self._feeding = feeding
        self._whole = self._new()
        self._recent = self._new()
        self._due_s = FIRST_WORD_S
        self.straggler = ""

    def add(self, done: StepsDone) -> None:
        """Some more steps; at most once a minute they are a reason for a line about streamers."""
        self._whole.add(done)
        if not self._feeding.streamers:
            return
        self._recent.add(done)
        if self._recent.seconds >= self._due_s:
            self._say(self._recent)
            self._recent, self._due_s = self._new(), WORD_S

    def finish(self) -> performance.Input:
        """The last word, and the record."""
        self._say(self._whole)
        verdict = self._whole.verdict()
        if verdict is None:
            return performance.Input()
        return performance.Input(
            str(verdict.bound),
            verdict.wait_share,
            verdict.streamers,
            None if self._is_in_vain(verdict) else verdict.needed,
            self._stage(verdict),
        )

    def _new(self) -> InputUse:
        return InputUse(max(1, len(self._feeding.streamers)))

    def _say(self, use: InputUse) -> None:
        verdict, self.straggler = use.verdict(), ""
        if verdict is None or verdict.bound is Bound.NOT or use.wait_s < WORTH_A_WORD_S:
            return
        if verdict.is_alone:
            self.straggler = self._feeding.streamers[verdict.slowest.streamer]
        waited = f"the steps waited {verdict.wait_share:.0%} of their time for batches"
        why = self._why(verdict)
        log.warning(f"Input {verdict.bound}: {waited}: {why}; see cs_input_analyzer")

    def _why(self, verdict: InputVerdict) -> str:
        """One line of numbers, the remedy in it."""
        names, slowest = self._feeding.streamers, verdict.slowest
        who = names[slowest.streamer] if names else "this process"
        if len(names) > 1 and not verdict.is_alone:
            who = f"each of {len(names)} streamers"
        others = f" (the others {_rate(verdict.typical)})" if verdict.is_alone else ""
        delivered = f"{who} delivered {_rate(slowest.delivered)} batches/s{others}"
        rates = f"{delivered}, the wafer asked for {_rate(verdict.asked)}"
        stage = _stage_text(self._stage(verdict), slowest.stage_s, 1 / slowest.delivered)
        if names and verdict.keeps_up:
            return f"{rates}: {BATCHES_UNEVEN}"
        return f"{rates}: {stage}; {self._remedy(verdict)}"

    def _remedy(self, verdict: InputVerdict) -> str:
        if verdict.is_alone:
            return LOOK_AT_THE_STRAGGLER
        if self._is_in_vain(verdict):
            return STREAM_REPLAYED
        needed = verdict.needed
        if needed > MOST_ADVISED:
            step_ms = 1e3 / (verdict.asked * verdict.streamers)
            return f"a step takes only {step_ms:.2g} ms: use a larger batch or cheaper samples"
        if not self._feeding.streamers:  # one process makes a batch, then computes its step
            many = "1 streamer" if needed == 1 else f"{needed} streamers"
            return f"{many} in a csrun_wse run would overlap this with the steps"
        return f"{needed} streamers are needed ({self._feeding.options(needed)})"

    def _is_in_vain(self, verdict: InputVerdict) -> bool:
        """Return whether the streamers that would be needed would not help."""
        return self._feeding.replayed and verdict.needed > max(1, verdict.streamers)

    def _stage(self, verdict: InputVerdict) -> str | None:
        return self._feeding.stage(verdict.slowest.streamer, verdict.slowest.stage)


def _stage_text(stage: str | None, stage_s: float, batch_s: float) -> str:
    """Text on a streamer's slowest stage."""
    if stage is None:
        return f"a batch takes {batch_s * 1e3:.3g} ms to make"
    return f"its stage '{stage}' takes {stage_s * 1e3:.3g} ms per batch"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
