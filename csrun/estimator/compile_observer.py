"""Observer of a compile: progress, logs and verification of its stages, by CSRUN_DEBUG."""

import logging

from csrun.compiler import PassObserver, Stage, Verification
from csrun.context import DebugLevel, debug_level
from csrun.estimator.progress import Begin

log = logging.getLogger("csrun")


def show_stage(stage: Stage) -> None:
    """Log a stage of the compiler, in the detail set by CSRUN_DEBUG."""
    level = debug_level()
    if level >= DebugLevel.PASSES:
        for line in stage.log:
            log.info(line)
    if level >= DebugLevel.STAGES:
        text = " unchanged" if stage.text is None else f"\n{stage.text}"
        log.info(f"after {stage.name}:{text}")


def observer_of(begin: Begin, describes: bool = True) -> PassObserver:
    """Return the observer of a compile, by CSRUN_DEBUG; `begin` is called as each stage begins.

    describes: as in PassObserver.
    """
    texts = debug_level() >= DebugLevel.STAGES
    return PassObserver(show_stage, begin, verification(), texts, describes)


def verification() -> Verification:
    """Return how often modules are verified: after each pass in debugging, or never."""
    return Verification.EACH if debug_level() >= DebugLevel.PASSES else Verification.NONE
