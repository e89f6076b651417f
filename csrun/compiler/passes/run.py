"""Runs the passes: verifies between them, times them, keeps each stage's text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from xdsl.dialects.builtin import ModuleOp

from csrun.cirh import print_module
from csrun.compiler.passes import rewrite
from csrun.compiler.passes.common import CommonSubexpressions
from csrun.compiler.passes.gradient import Gradient
from csrun.compiler.passes.learning import LearningAlgorithm

#: Forward operators are put in order before the gradient is taken, so that it is of few operators;
#: what it adds is put in order after.
PASSES: tuple[rewrite.Pass, ...] = (
    rewrite.Canonicalization(),
    rewrite.ConstantFolding(),
    rewrite.Fusion(),
    Gradient(),
    LearningAlgorithm(),
    rewrite.Canonicalization(),
    rewrite.ConstantFolding(),
    CommonSubexpressions(),
    rewrite.DeadCode(),
)


@dataclass(frozen=True)
class Stage:
    """The module after a pass. `log` says how long the pass took, then what it did."""

    name: str
    text: str
    log: tuple[str, ...] = ()
    milliseconds: float = 0.0

    @property
    def did(self) -> tuple[str, ...]:
        """What the pass did, without what it looked for and did not find."""
        return tuple(x for x in map(str.strip, self.log[1:]) if not x.startswith(rewrite.NO_MATCH))


Show = Callable[[Stage], None]
Begin = Callable[[str], None]


def no_progress(name: str) -> None:
    """Nobody watches which stage begins."""


@dataclass(frozen=True)
class Stages:
    """What the passes leave: a stage for the trace and for each pass, in order."""

    stages: tuple[Stage, ...]

    @property
    def canonical_text(self) -> str:
        """The IR that the back end takes."""
        return self.stages[-1].text

    def with_stage(self, stage: Stage) -> "Stages":
        """These and one more."""
        return Stages((*self.stages, stage))

    @property
    def files(self) -> dict[str, str]:
        """Files of the compile directory."""
        numbered = enumerate(self.stages, 1)
        texts = {f"{number:02}_{stage.name}.mlir": stage.text for number, stage in numbered}
        log = [line for stage in self.stages for line in stage.log]
        return {**texts, "compile.log": "\n".join(log) + "\n"}


def run_passes(
    module: ModuleOp,
    passes: Sequence[rewrite.Pass] = PASSES,
    show: Show | None = None,
    begin: Begin = no_progress,
) -> Stages:
    """Run the passes over `module`, which is changed.

    `begin` gets the name of each pass before it runs, `show` each stage as soon as it is.

    Raises: xDSL's VerifyException when a pass leaves an invalid module, which is a compiler bug
    """
    stages = [Stage("trace", print_module(module))]
    for step in passes:
        if show is not None:
            show(stages[-1])
        begin(step.name)
        started = perf_counter()
        lines = step.apply(module)
        module.verify()
        milliseconds = (perf_counter() - started) * 1000
        log = (f"{step.name}: {milliseconds:.1f} ms", *(f"    {line}" for line in lines))
        stages.append(Stage(step.name, print_module(module), log, milliseconds))
    if show is not None:
        show(stages[-1])
    return Stages(tuple(stages))


MATCHING = "matching"
PLACING = "placing"
GENERATING = "generating"
REPORT = "report"
STAGES = (*(step.name for step in PASSES), MATCHING, PLACING, GENERATING, REPORT)
