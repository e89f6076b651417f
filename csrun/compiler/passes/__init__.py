"""Passes over CIRH: each a file, run in order, verified and written down after each."""

from csrun.compiler.passes.run import Show, Stages, run_passes

__all__ = ["Show", "Stages", "run_passes"]
