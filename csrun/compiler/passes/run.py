"""Runs the passes: verifies between them, times them, keeps each stage's text."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from xdsl.dialects.builtin import ModuleOp

from csrun.cirh import print_module
from csrun.compiler.passes.base import Pass
from csrun.compiler.passes.gradient import Gradient
from csrun.compiler.passes.learning import LearningAlgorithm
from csrun.compiler.passes.rewrite import Rewrite

PASSES: tuple[Pass, ...] = (Gradient(), LearningAlgorithm(), Rewrite())


@dataclass(frozen=True)
class Stages:
    """What the passes leave: files of the compile directory, and the IR that the back end takes."""

    files: dict[str, str]
    canonical_text: str


def run_passes(module: ModuleOp, passes: Sequence[Pass] = PASSES) -> Stages:
    """Run the passes over `module`, which is changed.

    Raises: xDSL's VerifyException when a pass leaves an invalid module, which is a compiler bug
    """
    text = print_module(module)
    files, log = {"01_trace.mlir": text}, []
    for number, step in enumerate(passes, 2):
        started = perf_counter()
        lines = step.apply(module)
        module.verify()
        seconds = perf_counter() - started
        text = print_module(module)
        files[f"{number:02}_{step.name}.mlir"] = text
        log.append(f"{step.name}: {seconds * 1000:.1f} ms")
        log += [f"    {line}" for line in lines]
    files["compile.log"] = "\n".join(log) + "\n"
    return Stages(files, text)
