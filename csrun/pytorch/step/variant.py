"""Variants of a loop's step, each a program, and their batches."""

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from csrun.base.errors import UsageError
from csrun.base.half_formats import HalfFormat
from csrun.base.mode import RunMode
from csrun.cirh import precision_of, set_storage
from csrun.cirh.ops.learning import UNLIMITED, Clipping
from csrun.compiler import CompileOptions, rebatch
from csrun.data.errors import DataError
from csrun.estimator.model_trace import TracedModel
from csrun.executable import Executable, InputSpec
from csrun.executable.shared_store import window_bytes
from csrun.pytorch.errors import user_line
from csrun.pytorch.loader.changes import describe_changes
from csrun.pytorch.lower.to_cirh import module_of
from csrun.pytorch.optimizers.optimization import Form, Optimization
from csrun.pytorch.record.recording import Recording, Ref
from csrun.pytorch.step.loop_shape import LoopShape
from csrun.pytorch.step.snapshots import Constant
from csrun.pytorch.user import SessionLoader
from csrun.runtime.chief.machine import Program
from csrun.runtime.chief.training.step_orders import OrderSplitter
from csrun.runtime.step.source import are_first_rows

log = logging.getLogger("csrun")
KEEPS = "the loop uses a value that forward has kept in a hook or an attribute"
_MADE_LATE = (
    "call cbtorch.dataloader(...) before the first Session's block: the streamers of a csrun_wse "
    "run, which make its batches, do not run the block"
)


@dataclass(eq=False)
class Batches:
    """One loader's batches on their way to the wafer.

    number: of the loader in the script.
    next: the next batch; None if the streamers do not know its order.
    fed: program that batches are made for; other variants share them.
    variants: compiled ones.
    most: number of batches of a pass that the loop uses.
    is_pushed: the chief makes them itself and sends them to the wafer.
    """

    loader: SessionLoader
    number: int
    next: int | None = 0
    fed: Program | None = None
    variants: list["StepVariant"] = field(default_factory=list)
    most: int = sys.maxsize
    open_passes: int = 0
    is_pushed: bool = False

    @contextmanager
    def pass_open(self) -> Iterator[None]:
        """Context manager of an open pass."""
        self.open_passes += 1
        try:
            yield
        finally:
            self.open_passes -= 1

    def apply_changes(self, flush: Callable[[], None], *, sends: bool) -> None:
        """Apply the loop's changes of the data since the last call.

        flush: runs queued steps before.
        sends: other processes make the batches.

        Raises: UsageError for a change during a pass, or one that cannot be sent
        """
        changes = self.loader.changes
        if not (paths := changes.found()):
            return
        if self.open_passes:
            raise UsageError(
                f"{user_line()}: {describe_changes(paths)} has changed during a pass over it: "
                "change it between two passes, or give an evaluation a data set of its own"
            )
        try:
            flush()
            changes.take(paths, sends)
        except DataError as error:
            raise UsageError(f"{user_line()}: {error}") from error
        self.next = None

    def begin(self, flush: Callable[[], None]) -> None:
        """Begin another pass. flush: runs queued steps of earlier ones, if necessary."""
        if not self.loader.orders.begin(flush):
            self.next = None

    @property
    def last(self) -> int:
        """The first batch whose order is unknown."""
        return self.loader.orders.end() * self.loader.length

    @property
    def upcoming(self) -> int:
        """Batch that streamers begin with: the next one, or the next pass's if it is unknown.

        `last` if its order is unknown: then they make none until a pass begins.
        """
        if self.next is not None:
            return self.next
        return min(self.loader.orders.begun * self.loader.length, self.last)

    def last_for(self, rows: int, first: int) -> int:
        """Return the end of the batches made from `first` on, for this many samples.

        A run may continue with the shorter last batch of a pass: a full one belongs to another
        program.
        """
        whole = self.whole_rows(first)
        if whole is None or rows >= whole:
            return self.last
        orders, length = self.loader.orders, self.loader.length
        number, position = divmod(first, length)
        later = range(position + 1, length)
        larger = (each for each in later if (orders.rows(number, each) or 0) > rows)
        return number * length + next(larger, length)

    def whole_rows(self, batch: int) -> int | None:
        """Return the samples of the first batch in a batch's pass; None if unknown."""
        is_known = batch < self.last
        return self.loader.orders.rows(batch // self.loader.length, 0) if is_known else None

    def may_feed(self, variant: "StepVariant") -> bool:
        """True if a variant can use the batches that are made now."""
        assert self.fed is not None, "they are made"
        return are_first_rows(variant.inputs, self.fed.plan.inputs)

    def whole(self, variant: "StepVariant") -> "StepVariant":
        """Return the variant with the most samples that can share its batches with this one."""
        alike = [one for one in reversed(self.variants) if one.trains == variant.trains]
        whole = [one for one in alike if are_first_rows(variant.inputs, one.inputs)]
        whole = [one for one in whole if one.has_store_of(variant)]
        return max([variant, *whole], key=lambda one: (one.rows, len(one.updates)))


class KnownBatches:
    """Batches of each of a script's loaders. loaders: those that it has created so far."""

    def __init__(self, loaders: list[SessionLoader]) -> None:
        self._loaders = loaders
        self._found: dict[SessionLoader, Batches] = {}

    def of(self, loader: SessionLoader, *, is_job: bool) -> Batches:
        """Return a loader's batches.

        Raises: UsageError in a job, for a loader that was created after the first Session's block
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
        """Yield the batches of loaders with a pass that has begun."""
        yield from self._found.values()

    def forget_trainings(self) -> None:
        """Forget the compiled training variants."""
        for batches in self._found.values():
            batches.variants = [variant for variant in batches.variants if not variant.trains]


@dataclass(eq=False)
class StepVariant:
    """One variant of the loop's step: training, evaluation, a shorter last batch.

    goals: the values that it is computed for. outputs: values that it returns besides the loss;
    wanted: those that it is to return from its next step on. constants: tensors whose numbers are
    in the program. is_one_of_many: other steps have other graphs, perhaps of other parameters.
    joined: loss, reads and calls of the latest recorded step whose outputs are wanted. kept_line:
    of a loss that is made of a value which forward has kept in a hook or an attribute. form: of the
    compiled program's updates. unpadded: recording of a step before rows that a mask of the batch
    selects were padded, if they are.
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
    is_one_of_many: bool = False
    seen_writes: int = -1
    kept_line: str = ""
    joined: tuple[Any, ...] = ()
    form: Form = ()
    unpadded: Recording | None = None

    def changed_constant(self, writes: int) -> str:
        """Return the line of a changed tensor whose numbers are in the program.

        writes: of the model's tensors so far; its buffers are compared after one.
        """
        if not self.constants:
            self.seen_writes = writes
            return ""
        self.constants = [constant for constant in self.constants if constant.tensor is not None]
        are_written = writes != self.seen_writes
        looked_at = (each for each in self.constants if are_written or not each.is_buffer)
        changed = next((each.where for each in looked_at if not each.is_same), "")
        self.seen_writes = self.seen_writes if changed else writes
        return changed

    def require_constants(self, writes: int) -> None:
        """Raises: UsageError if a tensor has changed whose numbers are in the program"""
        if line := self.changed_constant(writes):
            raise UsageError(
                f"{line}: a tensor that this line uses is written between two calls of a step: "
                "write it after optimizer.step(), before the next batch is taken"
            )

    def traced(
        self,
        optimization: Optimization | None,
        options: CompileOptions,
        storage: HalfFormat | None = None,
        store_type: str | None = None,
    ) -> TracedModel:
        """Return its program before the passes, with the optimizer's updates if it trains.

        It is for one of the micro-batches of a batch.

        storage: 16-bit format of mixed precision.
        store_type: as of `module_of`.

        Raises: CompileError for operators over the whole batch, if there are several micro-batches
        """
        recording, optimizer = self.recording, optimization if self.trains else None
        if options.parts > 1:
            _require_no_script_tensors(recording)
        algorithms = optimizer.algorithms() if optimizer else {}
        earlier_updates = optimizer.earlier_updates(self.updates) if optimizer else {}
        scaled = optimizer.scaled if optimizer else None
        module = module_of(
            recording,
            algorithms,
            self.run_mode,
            self.outputs,
            clipping=Clipping(scaled.clip_norm) if scaled else UNLIMITED,
            scaling=scaled.rule if scaled else None,
            names_values=options.record_steps is not None,
            earlier_updates=earlier_updates,
            store_type=store_type,
        )
        if storage is not None:
            _require_float32(module)
            set_storage(module, storage)
        rebatch(module, options, self.samples)
        return TracedModel(module, None)

    @property
    def cause_of_forward(self) -> str:
        """Why forward runs in each step, with the line; empty if it need not.

        A tensor of the script is neither given to a call nor drawn by forward, or the loss is made
        of a value that forward has kept.
        """
        known = self.shape.known
        unknown = (leaf for leaf in self.recording.script_leaves if leaf.value not in known)
        if (leaf := next(unknown, None)) is not None:
            return f"{leaf.name}: forward uses a tensor of the script"
        return f"{self.kept_line}: {KEEPS}" if self.kept_line else ""

    def with_lines(self, message: str) -> str:
        """Return a message with the user's lines in place of names of the script's tensors."""
        for number, leaf in enumerate(self.recording.script_leaves):
            message = re.sub(rf"\bscript_{number}\b", f"the tensor of {leaf.name}", message)
        return message

    @property
    def samples(self) -> int:
        """Number of samples of its batches, as recorded."""
        first, *_ = self.recording.program_inputs
        return self.recording.kind(first.value).shape[0]

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Inputs of its program."""
        assert self.executable is not None, "compiled before"
        return self.executable.plan.inputs

    @property
    def rows(self) -> int:
        """Number of samples of its batches, as compiled."""
        return self.inputs[0].shape[0]

    @property
    def window_bytes(self) -> int:
        """Gradient window that its program needs in the store, in bytes."""
        assert self.executable is not None, "compiled before"
        return window_bytes(self.executable.plan)

    @property
    def slots(self) -> set[str]:
        """Names of the optimizer's state in the store that its program lays out."""
        assert self.executable is not None, "compiled before"
        return {slot.name for slot in self.executable.plan.store.slots}

    @property
    def numbers(self) -> int:
        """Count of the numbers that come with each of its steps."""
        assert self.executable is not None, "compiled before"
        return self.executable.plan.store.numbers

    def has_store_of(self, other: "StepVariant") -> bool:
        """True if its program's store has all that another program updates."""
        has_state = self.slots >= other.slots and self.numbers >= other.numbers
        return has_state and self.updates >= other.updates

    @property
    def stored(self) -> set[str]:
        """Names of the parameters and buffers that it reads."""
        return set(self.recording.stored_names)

    @cached_property
    def updates(self) -> frozenset[str]:
        """Names of the parameters that it trains."""
        return frozenset(self.recording.gradients)

    @property
    def evaluated_buffers(self) -> Mapping[str, Ref]:
        """Values of the buffers that a step of an evaluation writes, by their names."""
        return {} if self.trains else self.recording.written

    @cached_property
    def trains(self) -> bool:
        return self.run_mode is RunMode.TRAIN


def _require_float32(module: ModuleOp) -> None:
    """Raises: UsageError for another precision of the model"""
    if (kind := precision_of(module)) != "float32":
        raise UsageError(
            f"{user_line()}: mixed precision needs a model of float32, got {kind}: leave "
            "model.double() out, or the precision of cbtorch.initialize"
        )


def _require_no_script_tensors(recording: Recording) -> None:
    """Raises: UsageError for tensors that cannot be split among systems or micro-batches"""
    for leaf in recording.script_leaves:
        if recording.kind(leaf.value).shape:  # a number is the same for all
            raise UsageError(
                f"{leaf.name}: this line uses a tensor that the script makes in each step, and "
                "csrun does not know which part of it a CS system or a micro-batch needs: set "
                "num_csx to 1 and leave micro_batch_size out, or make the tensor in the dataset"
            )
