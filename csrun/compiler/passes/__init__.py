"""Passes over CIRH, run in the order of `PASSES`; the module after each changing pass is kept as
text.
"""

from csrun.compiler.passes.pass_manager import (
    NO_OBSERVER,
    PASSES,
    PassObserver,
    Stage,
    Stages,
    Verification,
    passes_for,
    run_passes,
)

__all__ = [
    "NO_OBSERVER",
    "PASSES",
    "PassObserver",
    "Stage",
    "Stages",
    "Verification",
    "passes_for",
    "run_passes",
]
