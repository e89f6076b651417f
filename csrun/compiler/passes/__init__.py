"""Passes over CIRH, run in the order of `PASSES`; each stage that changed something is kept."""

from csrun.compiler.passes.pass_manager import (
    NOBODY,
    PASSES,
    Stage,
    Stages,
    Verification,
    Watch,
    passes_for,
    run_passes,
)

__all__ = [
    "NOBODY",
    "PASSES",
    "Stage",
    "Stages",
    "Verification",
    "Watch",
    "passes_for",
    "run_passes",
]
