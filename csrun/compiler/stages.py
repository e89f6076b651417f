"""The stages of a compile by name, as its progress shows them."""

from csrun.compiler.passes import PASSES

MATCHING = "matching"
PLACING = "placing"
GENERATING = "generating"
REPORT = "report"
STAGES = (*(step.name for step in PASSES), MATCHING, PLACING, GENERATING, REPORT)
