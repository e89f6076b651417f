"""The parts of a loop: a step of each is a program, and takes its batches from a loader."""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from csrun.base.errors import UsageError
from csrun.base.mode import RunMode
from csrun.compiler import CompileOptions, rebatch
from csrun.data.errors import DataError
from csrun.estimator.trace import TracedModel
from csrun.executable import Executable, InputSpec
from csrun.pytorch.errors import user_line
from csrun.pytorch.loader.changes import described
from csrun.pytorch.lower.to_cirh import module_of
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.record.recording import Recording, Ref, Source
from csrun.pytorch.step.expected_calls import LoopShape
from csrun.pytorch.step.snapshots import Constant
from csrun.pytorch.user import Loader
from csrun.runtime.chief.machine import Program
from csrun.runtime.chief.step_orders import OrderSplitter
from csrun.runtime.step.source import are_first_rows

log = logging.getLogger("csrun")
_MADE_LATE = (
    "call cbtorch.dataloader(...) before the first Session's block: the streamers of a csrun_wse "
    "run, which make its batches, do not run the block"
)


@dataclass(eq=False)
class Batches:
    """One loader's batches as they come to the wafer.

    number: of the loader in the script. next: the batch that comes next, if the streamers know of
    the order that it is in. fed: the program that they are made for, while there is one; those of
    the other parts take them from it. parts: those that are compiled. most: so many the loop has of
    a pass.
    """

    loader: Loader
    number: int
    next: int | None = 0
    fed: Program | None = None
    variants: list["StepVariant"] = field(default_factory=list)
    most: int = sys.maxsize
    open_passes: int = 0

    @contextmanager
    def pass_open(self) -> Iterator[None]:
        """The loop is amid a pass."""
        self.open_passes += 1
        try:
            yield
        finally:
            self.open_passes -= 1

    def look(self, flush: Callable[[], None], *, sends: bool) -> None:
        """Take what the loop has changed of the data since the last look.

        flush: runs what was taken before. sends: other processes make the batches.

        Raises: UsageError for a change amid a pass, or one that cannot be sent
        """
        changes = self.loader.changes
        if not (paths := changes.found()):
            return
        if self.open_passes:
            raise UsageError(
                f"{user_line()}: {described(paths)} has changed amid a pass over it: change it "
                "between two passes, or give an evaluation a data set of its own"
            )
        try:
            flush()
            changes.take(paths, sends)
        except DataError as error:
            raise UsageError(f"{user_line()}: {error}") from error
        self.next = None

    def begin(self, flush: Callable[[], None]) -> None:
        """Another pass begins; flush: runs what was taken of those before, if it must be now."""
        if not self.loader.orders.begin(flush):
            self.next = None

    @property
    def last(self) -> int:
        """The first batch of which nobody has told in which order it is."""
        return self.loader.orders.end() * len(self.loader)

    @property
    def upcoming(self) -> int:
        """The batch that streamers begin with: the next one, or the next pass's if that is unknown.

        `last` where nobody has told its order: then they make none until a pass begins.
        """
        if self.next is not None:
            return self.next
        return min(self.loader.orders.begun * len(self.loader), self.last)

    def may_feed(self, variant: "StepVariant") -> bool:
        """Whether a part may take them where they go now, or must, as it is of fewer samples."""
        assert self.fed is not None, "they are made"
        whole = self.fed.plan.inputs
        return variant.rows < whole[0].shape[0] or are_first_rows(variant.inputs, whole)

    def whole(self, variant: "StepVariant") -> "StepVariant":
        """The part with the most samples from whose program this one may take its batches."""
        alike = [one for one in reversed(self.variants) if one.trains == variant.trains]
        whole = [one for one in alike if are_first_rows(variant.inputs, one.inputs)]
        return max([variant, *whole], key=lambda one: (one.rows, one.updates == variant.updates))


class KnownBatches:
    """The batches of each of a script's loaders. loaders: those that it has made so far."""

    def __init__(self, loaders: list[Loader]) -> None:
        self._loaders = loaders
        self._found: dict[Loader, Batches] = {}

    def of(self, loader: Loader, *, is_job: bool) -> Batches:
        """A loader's batches.

        Raises: UsageError in a job, for one that the other tasks have not made before the Session
        """
        if loader not in self._found:
            if loader not in self._loaders:
                if is_job:
                    raise UsageError(f"{user_line()}: {_MADE_LATE}")
                log.warning("%s: %s", user_line(), _MADE_LATE)
                self._loaders.append(loader)
            self._found[loader] = Batches(loader, self._loaders.index(loader))
        return self._found[loader]

    def all(self) -> Iterator[Batches]:
        """Those that a pass was begun of."""
        yield from self._found.values()

    def forget_trainings(self) -> None:
        """Programs that train are to be compiled anew, in another way."""
        for batches in self._found.values():
            batches.variants = [variant for variant in batches.variants if not variant.trains]


@dataclass(eq=False)
class StepVariant:
    """One step of the loop as a program: the training's, an evaluation's, a last batch's.

    goals: the values that it is there for. outputs: values that it gives besides the loss; wanted:
    those that it is to give from its next step on. constants: tensors whose numbers it has.
    """

    recording: Recording
    shape: LoopShape
    batches: Batches
    run_mode: RunMode
    goals: Sequence[Ref]
    outputs: tuple[Ref, ...] = ()
    wanted: dict[Ref, None] = field(default_factory=dict)
    executable: Executable | None = None
    program: Program | None = None
    orders: OrderSplitter | None = None
    constants: list[Constant] = field(default_factory=list)

    def require_constants(self) -> None:
        """Raises: UsageError where a tensor has changed whose numbers are in the program"""
        self.constants = [constant for constant in self.constants if constant.is_alive]
        for constant in self.constants:
            if not constant.is_same:
                raise UsageError(
                    f"{constant.where}: a tensor that this line computes with was written since "
                    "step 1, and the program has its numbers of then: make it an array of the "
                    "batch, in the dataset, or a buffer that forward itself changes"
                )

    def traced(self, optimization: Optimization | None, options: CompileOptions) -> TracedModel:
        """Its program before the passes, with the optimizer's updates if it trains.

        That is of one of the parts that a batch is computed in.

        Raises: CompileError for what is of the batch as a whole, where there are several
        """
        recording, optimizer = self.recording, optimization if self.trains else None
        algorithms = optimizer.algorithms(recording.gradients) if optimizer else {}
        module = module_of(recording, algorithms, self.run_mode, self.outputs)
        rebatch(module, options, self.samples)
        return TracedModel(module, None)

    @property
    def samples(self) -> int:
        """Those of its batches, as they were recorded."""
        first, *_ = self.recording.of(Source.INPUT)
        return self.recording.kind(first.value).shape[0]

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Those of its program."""
        assert self.executable is not None, "compiled before"
        return self.executable.plan.inputs

    @property
    def rows(self) -> int:
        """The samples of its batches."""
        return self.inputs[0].shape[0]

    @property
    def updates(self) -> set[str]:
        """The parameters that it trains."""
        return set(self.recording.gradients)

    @property
    def trains(self) -> bool:
        return self.run_mode is RunMode.TRAIN
