"""plan.json: everything a wafer and MemoryX must know of a compiled model besides its program.

Memory is two blocks. The *arena* is the wafer's: activations, their gradients, scratch, outputs
and, in weight streaming, weight slots. The *store* holds the state of the training: weights and
optimizer state, each a flat region in which group g occupies the same byte range, and gradients.
In weight streaming the store is MemoryX's; pipelined and on the CPU it is the front of the arena.
"""

from enum import StrEnum
from typing import Any, Literal

import msgspec

from csrun.base.half_formats import HalfFormat
from csrun.base.mode import ExecutionMode, RunMode
from csrun.executable.bfloat16 import Products
from csrun.executable.estimate import Estimate, Region
from csrun.executable.learning_rate import Schedule, StepNumber
from csrun.executable.loss_scale import LossScaling
from csrun.executable.stored_groups import Group, Layer, Parameter, Positive, StoreLayout

MOST_STEPS = 256  # of an order, between two words of the chief
PREFETCH_BYTES = 4 << 20  # of a group; less is copied faster than a thread is woken for it


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named array in the arena, at a fixed place."""

    name: str
    offset_bytes: int
    shape: tuple[int, ...]
    dtype: str


class AxisSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of an array along axis `dim`: a slice, or the one at `start` when there is no stop."""

    dim: int
    start: int
    stop: int | None = None
    step: int = 1


class LabelRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Range of a loss's labels: 0..classes-1, and `ignore_index` for labels to skip.

    They are what is left of the array after these cuts, one by one.
    """

    classes: int
    ignore_index: int
    cuts: tuple[AxisSlice, ...] = ()


class NumberRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Range of the indices that these cuts of an array hold: numbers in 0..count-1."""

    count: int
    cuts: tuple[AxisSlice, ...] = ()


class InputSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array of a batch, in the order in which the model takes them.

    `labels`: the ranges of the losses that it holds the labels of. Each batch comes with the number
    of labels that count in it, for each range of each input. `numbers`: what it holds the numbers
    of, as of the rows of a table. `half`: the 16-bit format that it is rounded to, if it is.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    labels: tuple[LabelRange, ...] = ()
    numbers: tuple[NumberRange, ...] = ()
    half: HalfFormat | None = None


class Combine(StrEnum):
    """Reduction of one output over minibatches and systems."""

    SAMPLES = "samples"  # an axis carries samples: one after the other
    SUM = "sum"
    FIRST = "first"  # it is the same in all of them, or there is one


class Commit(StrEnum):
    """Time at which a group's gradients become an update."""

    IMMEDIATE = "immediate"  # as soon as they are complete
    AFTER_ALL_GRADIENTS = "after_all_gradients"  # of the step: something global decides


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An arena buffer whose value the host gets after each step, copied batch by batch.

    Of samples: `axis` carries them `outer` times, with `rows` rows each.
    """

    name: str
    buffer: str
    combine: Combine
    axis: int = 0
    rows: int = 1
    outer: int = 1


_GRADIENT = "gradient/"  # begins the keys of gradients of weights
RECORDED = "torch_"  # begins the names of values of a recorded PyTorch step, then their number


class RecordedValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that a program records: an operator's result, an input of the batch, or weights.

    key: equal in programs of one model. line: the user's. combine: how values of minibatches make
    that of the batch, as of an output (None: in a way of its own). recorded: the name of the value
    in a recorded PyTorch step, if it is one.
    """

    key: str
    layer: str
    operator: str
    kernel: str = ""
    line: str = ""
    combine: Combine | None = None
    axis: int = 0
    rows: int = 1
    outer: int = 1
    recorded: str = ""

    @property
    def is_activation(self) -> bool:
        """Return whether it is a result of the model's, not an input, weight or gradient of one."""
        return self.operator not in ("input", "weights") and not self.is_gradient

    @property
    def is_gradient(self) -> bool:
        """Return whether it is the gradient of a weight."""
        return self.key.startswith(_GRADIENT)

    @property
    def place(self) -> str:
        """Its layer, kernel and operator, and the user's line."""
        name = self.key.removeprefix(_GRADIENT)
        of = f", in the gradient of {name}" if name != self.key else ""
        line = f", {self.line}" if self.line else ""
        kernel = f" ({self.kernel})" if self.kernel else ""
        return f"layer {self.layer}{kernel}, operator {self.operator}{line}{of}"


class RecordedSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The steps, from 1 on, in which a program records its values, and these, by number."""

    first: int
    last: int
    values: tuple[RecordedValue, ...]


class MeasuredSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps whose values a program measures: multiples of `every`; values: these, by number."""

    every: int
    values: tuple[RecordedValue, ...]


class Visit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a function of the program, by its name.

    groups: those whose weights it reads, by index. gradients: those that it writes gradients of, or
    adds to. completes: those whose gradients are complete after it, and whose weights are not read
    again in the step. frees: buffers that no later visit uses.
    """

    function: str
    groups: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    completes: tuple[int, ...] = ()
    frees: tuple[str, ...] = ()


class MinibatchVisit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A visit, by its place in the plan's order, of one minibatch."""

    visit: int
    minibatch: int


class BatchSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Split of a step's batch; options of a compile, and part of its plan.

    Each of `systems` has an equal share of the batch, computed in `micro_batches` one after the
    other. A micro-batch is split over `replicas` of the model, whose share flows in
    `minibatches_in_flight`. accumulates: a step may take several batches.
    """

    systems: Positive = 1
    micro_batches: Positive = 1
    replicas: Positive = 1
    minibatches_in_flight: Positive = 1
    accumulates: bool = False

    @property
    def at_once(self) -> int:
        """Minibatches of a micro-batch, of all replicas."""
        return self.replicas * self.minibatches_in_flight

    @property
    def minibatches(self) -> int:
        """Minibatches of a step on one system, of all replicas and micro-batches."""
        return self.micro_batches * self.at_once

    @property
    def parts(self) -> int:
        """Minibatches of a step, of all systems."""
        return self.systems * self.minibatches


class PlanOptions(BatchSplit, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a compile that its plan records.

    kernels: their form; its results differ in the last digits. products: those of machine code, or
    BLAS's; where both operands are numbers of bfloat16, those of the instructions that are named.
    Which options the compiler has chosen, it was for the models of the checksums in `chosen_for`.
    """

    mode: ExecutionMode
    run_mode: RunMode
    kernels: Literal["numpy", "llvm"] = "numpy"
    products: Products = "own"
    chosen_for: tuple[str, ...] = ()

    @property
    def is_streaming(self) -> bool:
        """Return whether the layers take turns on the wafer."""
        return self.mode is ExecutionMode.WEIGHT_STREAMING

    def recorded(self) -> dict[str, Any]:
        """The options that a plan records, by name."""
        return {name: getattr(self, name) for name in PlanOptions.__struct_fields__}


class Plan(PlanOptions, frozen=True, forbid_unknown_fields=True):
    """plan.json.

    `arena_bytes` is all that the wafer allocates; with `store_in_arena` the store is the arena's
    first `store.nbytes` bytes. `visits` are a step's, in their order. `loss_buffer` names a
    float64[1] arena buffer that holds, before any group's gradients are complete, the *sum* of the
    loss over what counts in the batch (None: no loss): the labels of number `loss_count` among the
    batch's counts, or its valid samples when it is None. `learning_rate` is the schedule of a
    training's updates, or which of the step's numbers it is; gradients are clipped to `clip_norm`.
    `counts_padding` names the layer and operator in which rows that fill up an incomplete batch
    would count: such batches are refused (None: they count nowhere).

    One update is that of all systems, replicas and minibatches. `marks`: layers told of, by their
    numbers. `recording`, `measuring`: values that the program writes to files, or the ranges of.
    `machine_code_share`: of the FLOPs, what machine code computes; `bfloat16_share`: what products
    by instructions for bfloat16 do.

    With several minibatches the program works on one minibatch; `inputs` are those of the
    global batch, and everything else is a minibatch's. Minibatch j has its buffers
    j * `minibatch_stride_bytes` further on, `schedule` is the order of the calls, and gradients of
    all but the first minibatch are written to `partial_offset_bytes` in the arena, to be added to
    the store's; so are all where they are words, and the store has sums. With one minibatch the
    visits are the schedule.

    Before that, a batch is cut into `micro_batches`, each computed in the memory of the one before:
    minibatches are parts of a micro-batch. Of the first one gradients are written to the store, of
    the others added; they are complete in the last one. What the host gets of each minibatch is
    kept from `kept_offset_bytes` on. Visits come again for the segments that are `recomputed`.

    One that `accumulates` may take several batches a step, and be one of several programs that do:
    gradients of the first are written to the store, of others added, wherever each was computed.
    """

    compiler_version: str
    checksum: str
    precision: str  # float32 | float64: of arithmetic, master weights and optimizer state
    batch_size: int
    minibatch_stride_bytes: int
    partial_offset_bytes: int
    visits: tuple[Visit, ...]
    schedule: tuple[MinibatchVisit, ...]
    arena_bytes: int
    store_in_arena: bool
    store: StoreLayout
    buffers: tuple[Buffer, ...]
    inputs: tuple[InputSpec, ...]
    parameters: tuple[Parameter, ...]
    layers: tuple[Layer, ...]
    groups: tuple[Group, ...]
    loss_buffer: str | None
    loss_count: int | None
    counts_padding: str | None
    outputs: tuple[Output, ...]
    learning_rate: Schedule | StepNumber | None
    clip_norm: float | None
    floor_plan: tuple[Region, ...]
    estimate: Estimate
    marks: tuple[str, ...] = ()
    recording: RecordedSteps | None = None
    measuring: MeasuredSteps | None = None
    machine_code_share: float = 0.0
    bfloat16_share: float = 0.0
    kept_offset_bytes: int = 0
    recomputed: tuple[str, ...] = ()
    storage: HalfFormat | None = None
    loss_scaling: LossScaling | None = None

    @property
    def measures(self) -> bool:
        """Return whether updates need the global norm of the step's gradients."""
        return self.clip_norm is not None or self.loss_scaling is not None

    @property
    def sums_words(self) -> bool:
        """Return whether the wafer's gradients are words, of which the store has float32 sums."""
        has_sums = self.store.gradients_offset is not None and not self.store.has_half_gradients
        return self.storage is not None and has_sums

    @property
    def order(self) -> tuple[Visit, ...]:
        """The visits of a step, micro-batch by micro-batch; only the last ones complete a group."""
        earlier = tuple(msgspec.structs.replace(visit, completes=()) for visit in self.visits)
        return (self.micro_batches - 1) * earlier + self.visits

    @property
    def deliveries(self) -> tuple[int, ...]:
        """The groups in the order in which a step completes their gradients."""
        return tuple(group for visit in self.visits for group in visit.completes)

    @property
    def commit(self) -> Commit:
        """Time at which updates are made: clipping and loss scaling need all gradients first."""
        return Commit.AFTER_ALL_GRADIENTS if self.measures else Commit.IMMEDIATE

    @property
    def has_window(self) -> bool:
        """Return whether the store's gradients are a window; else each group has its own region."""
        adds = self.micro_batches > 1 or self.accumulates
        return self.commit is Commit.IMMEDIATE and not adds

    @property
    def placed_pes(self) -> int:
        """PEs of the fabric that have a layer."""
        return sum(rectangle.pes for rectangle in {region.rectangle for region in self.floor_plan})
