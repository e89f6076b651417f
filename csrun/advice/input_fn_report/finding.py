"""What the report says of a pipeline, and the rules that it comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from csrun.advice.input_fn_report.pipeline import Here
from csrun.data.operators import InputOperator

NOTICEABLE = 0.02  # of the input time: a measured gain below it is no reason to warn


class Severity(StrEnum):
    """How much a finding matters."""

    WARNING = "warning"
    INFO = "info"


class Effect(StrEnum):
    """What a rule is about. What is learned comes before how fast."""

    LEARNING = "learning"
    SPEED = "speed"


@dataclass(frozen=True)
class Advice:
    """What a rule found: what is there now, and the change to make.

    saves: the part of the operator's own time that the change saves; gain: the part of all the
    input time, where it follows from the numbers at hand. None leaves it to the rule.
    """

    now: str
    change: str
    severity: Severity = Severity.WARNING
    saves: float | None = None
    gain: float | None = None


@dataclass(frozen=True)
class Finding:
    """One suggestion.

    about: the operator to write, or to write otherwise. gain: the part of the input time that it
    would save; is_known: whether that was measured or computed, not assumed to have an order.
    """

    rule: str
    severity: Severity
    effect: Effect
    operator: InputOperator
    about: str
    law: str
    now: str
    change: str
    gain: float
    is_known: bool

    @property
    def message(self) -> str:
        """All of it in a line."""
        where = f"{self.operator.where}: " if self.operator.where else ""
        gain = f"; it saves {self.saves}" if self.saves else ""
        what = f"{where}{self.law}; now {self.now}: {self.change}{gain}"
        return f"[input_fn] - {self.about}(): {what}"

    @property
    def saves(self) -> str:
        """The gain in words; empty when nobody knows it."""
        return f"about {self.gain:.0%} of the input time" if self.is_known and self.gain else ""


@dataclass(frozen=True)
class AdviceRule:
    """One thing that can be said of an operator.

    starts_from: the operators that it is asked about. about: the operator it speaks of, when that
    is missing. look: None when all is well. gain: the part of the input time that it is assumed to
    save where nothing was measured; it gives an order, and is not printed.
    """

    name: str
    starts_from: tuple[str, ...]
    law: str
    look: Callable[[Here], Advice | None]
    effect: Effect = Effect.SPEED
    gain: float = 0.0
    about: str = ""

    def applied(self, here: Here) -> Finding | None:
        """What it says of an operator."""
        advice = self.look(here) if here.operator.name in self.starts_from else None
        if advice is None:
            return None
        gain = _known_gain(here, advice)
        severity = advice.severity
        if self.effect is Effect.SPEED and gain is not None and gain < NOTICEABLE:
            severity = Severity.INFO
        return Finding(
            self.name,
            severity,
            self.effect,
            here.operator,
            self.about or here.operator.name,
            self.law,
            advice.now,
            advice.change,
            self.gain if gain is None else gain,
            gain is not None,
        )


def _known_gain(here: Here, advice: Advice) -> float | None:
    if advice.gain is not None:
        return advice.gain
    share = here.pipeline.share(here.operator)
    return None if share is None or advice.saves is None else share * advice.saves
