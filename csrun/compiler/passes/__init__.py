"""Passes over CIRH: each a file, run in order, verified and written down after each."""

from csrun.compiler.passes.run import Stages, run_passes

__all__ = ["Stages", "run_passes"]
