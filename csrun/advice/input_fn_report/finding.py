"""Findings of the report, and the rules that produce them."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from csrun.advice.input_fn_report.pipeline import PipelinePosition
from csrun.data.input_operators import InputOperator

NOTICEABLE = 0.02  # of the input time: below it, a measured gain is only a hint


class Severity(StrEnum):
    """Severity of a finding."""

    WARNING = "warning"
    INFO = "info"


class Effect(StrEnum):
    """Subject of a rule, in the order of the report: learning precedes speed."""

    LEARNING = "learning"
    SPEED = "speed"


@dataclass(frozen=True)
class Advice:
    """Result of a rule: the present state, and the change to make.

    saves: fraction of the operator's time that the change saves; gain: fraction of the whole
    input time, if it can be computed. None leaves it to the rule.
    """

    now: str
    change: str
    severity: Severity = Severity.WARNING
    saves: float | None = None
    gain: float | None = None


@dataclass(frozen=True)
class Finding:
    """Suggestion.

    about: operator to add or change. gain: fraction of the input time that it saves; is_known: True
    if that was measured or computed, False if assumed for sorting.
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
        """Suggestion in one line."""
        where = f"{self.operator.where}: " if self.operator.where else ""
        gain = f"; it saves {self.saves}" if self.saves else ""
        what = f"{where}{self.law}; now {self.now}: {self.change}{gain}"
        return f"[input_fn] - {self.about}(): {what}"

    @property
    def saves(self) -> str:
        """Gain in words; empty if unknown."""
        return f"about {self.gain:.0%} of the input time" if self.is_known and self.gain else ""


@dataclass(frozen=True)
class AdviceRule:
    """Rule about an operator.

    starts_from: operators that it is applied to. about: name of a missing operator. look: returns
    None if there is no finding. gain: fraction of the input time assumed to be saved if nothing was
    measured, used only for sorting.
    """

    name: str
    starts_from: tuple[str, ...]
    law: str
    look: Callable[[PipelinePosition], Advice | None]
    effect: Effect = Effect.SPEED
    gain: float = 0.0
    about: str = ""

    def applied(self, here: PipelinePosition) -> Finding | None:
        """Apply the rule to an operator."""
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


def _known_gain(here: PipelinePosition, advice: Advice) -> float | None:
    if advice.gain is not None:
        return advice.gain
    share = here.pipeline.share(here.operator)
    return None if share is None or advice.saves is None else share * advice.saves
