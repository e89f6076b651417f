"""Runs the passes: verifies between them, times them, keeps each stage's text."""

from collections.abc import Callable, Sequence
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


Show = Callable[[str, str], None]  # (stage, text)


def run_passes(
    module: ModuleOp, passes: Sequence[Pass] = PASSES, show: Show | None = None
) -> Stages:
    """Run the passes over `module`, which is changed; `show` gets the text of each stage.

    Raises: xDSL's VerifyException when a pass leaves an invalid module, which is a compiler bug
    """
    files: dict[str, str] = {}
    log: list[str] = []

    def keep(number: int, name: str) -> str:
        text = files[f"{number:02}_{name}.mlir"] = print_module(module)
        if show is not None:
            show(name, text)
        return text

    text = keep(1, "trace")
    for number, step in enumerate(passes, 2):
        started = perf_counter()
        lines = step.apply(module)
        module.verify()
        seconds = perf_counter() - started
        text = keep(number, step.name)
        log.append(f"{step.name}: {seconds * 1000:.1f} ms")
        log += [f"    {line}" for line in lines]
    files["compile.log"] = "\n".join(log) + "\n"
    return Stages(files, text)
