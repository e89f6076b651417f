"""CIRH to an Executable in model_dir."""

import logging
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from xdsl.dialects.builtin import ModuleOp

from csrun.compiler import CompileOptions, compile_model
from csrun.executable import Executable, RunMode
from csrun.frontend.estimator.machines import Target
from csrun.records import messages

log = logging.getLogger("csrun")


@dataclass(frozen=True)
class Compiled:
    """An Executable, and how long it took to get it."""

    executable: Executable
    seconds: float


def compile_traced(
    module: ModuleOp, model_dir: Path, run_mode: RunMode, target: Target
) -> Compiled:
    """Compile for the target, or take the artifacts of an equal compile from model_dir."""
    started = perf_counter()
    options = CompileOptions(
        mode=target.mode, run_mode=run_mode, system=target.system if target.named else None
    )
    result = compile_model(module, model_dir, options)
    seconds = perf_counter() - started
    if result.cached:
        log.info(messages.CACHED_COMPILATION)
    log.info(messages.compiled(result.executable.directory, seconds))
    return Compiled(result.executable, seconds)
