"""Rules of the report: tables applied to each operator of a pipeline."""

from collections.abc import Sequence

from csrun.advice.input_fn_report.finding import AdviceRule, Effect, Finding, Severity
from csrun.advice.input_fn_report.pipeline import Pipeline, PipelinePosition
from csrun.advice.input_fn_report.rules.foreign import FOREIGN_RULES
from csrun.advice.input_fn_report.rules.reading import AHEAD_RULES, READING_RULES
from csrun.advice.input_fn_report.rules.speed import SPEED_RULES
from csrun.advice.input_fn_report.rules.streamer_shards import SHARDING_RULES
from csrun.advice.input_fn_report.rules.training_data import BATCHING_RULES, LEARNING_RULES

RULES = (
    *LEARNING_RULES,
    *BATCHING_RULES,
    *SHARDING_RULES,
    *READING_RULES,
    *SPEED_RULES,
    *AHEAD_RULES,
    *FOREIGN_RULES,
)


def examine(pipeline: Pipeline, rules: Sequence[AdviceRule] = RULES) -> tuple[Finding, ...]:
    """Return the findings: warnings first, learning before speed, then by gain."""
    places = [PipelinePosition(pipeline, at) for at in range(len(pipeline.operators))]
    found = [finding for here in places for rule in rules if (finding := rule.applied(here))]
    return tuple(sorted(found, key=_place))


def _place(finding: Finding) -> tuple[bool, bool, float]:
    return finding.severity is Severity.INFO, finding.effect is Effect.SPEED, -finding.gain
