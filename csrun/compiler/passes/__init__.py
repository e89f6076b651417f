"""Passes over CIRH, run in the order of `PASSES`; the module after each changing pass is kept as
text.
"""

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
