"""Pass manager: runs and times the passes, verifies between them if asked, keeps the text of
stages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from time import perf_counter

from xdsl.dialects.builtin import ModuleOp

from csrun.cirh import print_module
from csrun.compiler.passes import rewrite
from csrun.compiler.passes.common import CommonSubexpressions
from csrun.compiler.passes.copies import Copies
from csrun.compiler.passes.gradient import GradientPass
from csrun.compiler.passes.half_words import HalfWords
from csrun.compiler.passes.learning import LearningAlgorithm
from csrun.compiler.passes.matrix_sharding import MatrixSharding
from csrun.compiler.passes.mixed_precision import MixedPrecision

#: Forward operators are canonicalized before differentiation, so that there are few to
#: differentiate; the added operators are canonicalized after it.
PASSES: tuple[rewrite.Pass, ...] = (
    rewrite.Canonicalization(),
    rewrite.ConstantFolding(),
    rewrite.Fusion(),
    GradientPass(),
    LearningAlgorithm(),
    rewrite.Canonicalization(),
    rewrite.ConstantFolding(),
    CommonSubexpressions(),
    rewrite.DeadCodeElimination(),
    rewrite.Splitting(),
    MatrixSharding(),
    MixedPrecision(),
    HalfWords(),
    Copies(),
)


def passes_for(part_bytes: int | None) -> tuple[rewrite.Pass, ...]:
    """Return the passes, with matrices above this size sharded."""
    cutting = MatrixSharding(part_bytes)
    return tuple(cutting if isinstance(step, MatrixSharding) else step for step in PASSES)


@dataclass(frozen=True)
class Stage:
    """A pass or another stage. `log` has its time, then its changes.

    text: module after it; None if it changed nothing, or if the text is not wanted.
    """

    name: str
    text: str | None
    log: tuple[str, ...] = ()
    milliseconds: float = 0.0

    @property
    def did(self) -> tuple[str, ...]:
        """Changes of the pass, without patterns that did not match."""
        return tuple(x for x in map(str.strip, self.log[1:]) if not x.startswith(rewrite.NO_MATCH))


def ignore_stage(stage: Stage) -> None:
    """Default that ignores stages."""


def ignore_start(name: str) -> None:
    """Default that ignores the beginning of stages."""


class Verification(Enum):
    """Times of verification, which finds bugs of the passes."""

    NONE = auto()
    END = auto()  # after the last pass
    EACH = auto()  # after each changing pass; names the faulty one, and costs as much as the passes


@dataclass(frozen=True)
class PassObserver:
    """Observer of a compile.

    show: called with each stage when it is done.
    begin: called with the name of each stage that begins.
    texts: keep the text of stages even if it would not be stored.
    describes: store the text of stages and kernels, and the report's page.
    """

    show: Callable[[Stage], None] = ignore_stage
    begin: Callable[[str], None] = ignore_start
    verify: Verification = Verification.END
    texts: bool = False
    describes: bool = True


NO_OBSERVER = PassObserver()


@dataclass(frozen=True)
class Stages:
    """Snapshots of the module: a stage for the trace and for each pass, in order."""

    stages: tuple[Stage, ...]

    def with_stage(self, stage: Stage) -> "Stages":
        """Return these and one more."""
        return Stages((*self.stages, stage))

    @property
    def files(self) -> dict[str, str]:
        """Return files of the compile directory; a text's number is its stage's."""
        texts = {
            f"{number:02}_{stage.name}.mlir": stage.text
            for number, stage in enumerate(self.stages, 1)
            if stage.text is not None
        }
        log = [line for stage in self.stages for line in stage.log]
        return {**texts, "compile.log": "\n".join(log) + "\n"}


def run_passes(
    module: ModuleOp,
    passes: Sequence[rewrite.Pass] = PASSES,
    observer: PassObserver = NO_OBSERVER,
    trace: str | None = None,
) -> Stages:
    """Run the passes over `module`, which is changed; trace: its text, if known.

    Raises: xDSL's VerifyException if a pass leaves an invalid module, which is a compiler bug
    """
    if trace is None and observer.texts:
        trace = print_module(module)
    stages = [Stage("trace", trace)]
    observer.show(stages[-1])
    for step in passes:
        observer.begin(step.name)
        stages.append(_run(step, module, observer))
        observer.show(stages[-1])
    if observer.verify is Verification.END:
        module.verify()
    return Stages(tuple(stages))


def _run(step: rewrite.Pass, module: ModuleOp, observer: PassObserver) -> Stage:
    started = perf_counter()
    done = step.apply(module)
    milliseconds = (perf_counter() - started) * 1000
    if observer.verify is Verification.EACH and done.changed:
        module.verify()
    # A module that a pass left unchanged has the text of the previous stage.
    text = print_module(module) if done.changed and observer.texts else None
    log = (f"{step.name}: {milliseconds:.1f} ms", *(f"    {line}" for line in done.lines))
    return Stage(step.name, text, log, milliseconds)


MATCHING = "matching"
PLACING = "placing"
GENERATING = "generating"
REPORT = "report"
STAGES = (*(step.name for step in PASSES), MATCHING, PLACING, GENERATING, REPORT)
