"""The rules of the report: tables, one after the other."""

from csrun.data.report.rules.ahead import AHEAD_RULES
from csrun.data.report.rules.batching import BATCHING_RULES
from csrun.data.report.rules.foreign import FOREIGN_RULES
from csrun.data.report.rules.learning import LEARNING_RULES
from csrun.data.report.rules.reading import READING_RULES
from csrun.data.report.rules.sharding import SHARDING_RULES
from csrun.data.report.rules.speed import SPEED_RULES

RULES = (
    *LEARNING_RULES,
    *BATCHING_RULES,
    *SHARDING_RULES,
    *READING_RULES,
    *SPEED_RULES,
    *AHEAD_RULES,
    *FOREIGN_RULES,
)
