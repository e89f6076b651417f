"""Passes over CIRH: each a file, run in order, verified and written down after each."""

from csrun.compiler.passes.run import Show, Stage, Stages, run_passes

__all__ = ["Show", "Stage", "Stages", "run_passes"]
