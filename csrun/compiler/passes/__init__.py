"""Passes over CIRH: each a file, run in order, verified and written down after each."""

from csrun.compiler.passes.run import PASSES, Begin, Show, Stage, Stages, run_passes, unseen

__all__ = ["PASSES", "Begin", "Show", "Stage", "Stages", "run_passes", "unseen"]
