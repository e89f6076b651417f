"""The rules of the report: tables, one after the other."""

from csrun.advice.report.rules.ahead import AHEAD_RULES
from csrun.advice.report.rules.batching import BATCHING_RULES
from csrun.advice.report.rules.foreign import FOREIGN_RULES
from csrun.advice.report.rules.learning import LEARNING_RULES
from csrun.advice.report.rules.reading import READING_RULES
from csrun.advice.report.rules.sharding import SHARDING_RULES
from csrun.advice.report.rules.speed import SPEED_RULES

RULES = (
    *LEARNING_RULES,
    *BATCHING_RULES,
    *SHARDING_RULES,
    *READING_RULES,
    *SPEED_RULES,
    *AHEAD_RULES,
    *FOREIGN_RULES,
)
