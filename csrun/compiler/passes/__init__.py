"""Passes over CIRH, run in the order of `PASSES`, verified and written down after each."""

from csrun.compiler.passes.run import PASSES, Begin, Show, Stage, Stages, no_progress, run_passes

__all__ = ["PASSES", "Begin", "Show", "Stage", "Stages", "no_progress", "run_passes"]
