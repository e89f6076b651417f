"""plan.json: everything that a wafer and MemoryX need to know about a model, except its program.

There are two blocks of memory. The *arena* is the wafer's: activations, their gradients, scratch,
outputs and, in weight streaming, weight slots. The *store* holds the state of the training: weights
and optimizer state, each a flat region in which group g has the same byte range, and gradients. In
weight streaming the store is MemoryX's; in pipelined mode and on the CPU it is the front of the
arena.
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

MOST_STEPS = 256  # of an order, between two messages of the chief
PREFETCH_BYTES = 4 << 20  # size of a group above which copying in a separate thread pays


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named array in the arena, at a fixed place."""

    name: str
    offset_bytes: int
    shape: tuple[int, ...]
    dtype: str


class AxisSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Part of an array along axis `dim`: a slice, or the index `start` if there is no stop."""

    dim: int
    start: int
    stop: int | None = None
    step: int = 1


class LabelRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Range of a loss's labels: 0..classes-1, and `ignore_index` for labels to skip.

    cuts: slices, applied one after the other, that select the labels in the array.
    """

    classes: int
    ignore_index: int
    cuts: tuple[AxisSlice, ...] = ()


class NumberRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Range of the indices in the selected part of an array: 0..count-1."""

    count: int
    cuts: tuple[AxisSlice, ...] = ()


class InputSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array of a batch, in the order of the model's inputs.

    labels: ranges of the losses whose labels it holds. Each batch carries the number of labels that
        count, for each range of each input.
    numbers: ranges of the indices that it holds, e.g. of table rows.
    half: 16-bit format that it is rounded to, if any.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    labels: tuple[LabelRange, ...] = ()
    numbers: tuple[NumberRange, ...] = ()
    half: HalfFormat | None = None


class Combine(StrEnum):
    """Reduction of one output over minibatches and systems."""

    SAMPLES = "samples"  # concatenated along the axis of samples
    SUM = "sum"
    FIRST = "first"  # equal in all parts, or only one part


class Commit(StrEnum):
    """Time at which a group's gradients are applied."""

    IMMEDIATE = "immediate"  # as soon as the group's gradients are complete
    # at the end of the step: the update depends on all gradients
    AFTER_ALL_GRADIENTS = "after_all_gradients"


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arena buffer whose value the host receives after each step, copied batch by batch.

    axis, outer, rows: for outputs with samples, `axis` holds them `outer` times, with `rows` rows
        each.
    """

    name: str
    buffer: str
    combine: Combine
    axis: int = 0
    rows: int = 1
    outer: int = 1


#: Prefixes of the names of weight gradients, and of the inputs of the batch; no layer has a colon.
GRADIENT, INPUT = "gradient:", "input:"
RECORDED = "torch_"  # prefix of the names of values of a recorded PyTorch step, before their number


class RecordedValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Value that a program records: an operator's result, an input of the batch, or weights.

    key: equal in programs of one model.
    line: line of the user's code.
    combine: reduction of the minibatches' values to that of the batch, as of an output; None:
        specific to the value.
    recorded: name of the value in a recorded PyTorch step, if it has one.
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
        """Return whether it is a result of the model, not an input, a weight or a weight's
        gradient.
        """
        return self.operator not in ("input", "weights") and not self.is_gradient

    @property
    def is_gradient(self) -> bool:
        """Return whether it is the gradient of a weight."""
        return self.key.startswith(GRADIENT)

    @property
    def place(self) -> str:
        """Layer, kernel, operator and line of the user's code, as text."""
        name = self.key.removeprefix(GRADIENT)
        of = f", in the gradient of {name}" if name != self.key else ""
        line = f", {self.line}" if self.line else ""
        kernel = f" ({self.kernel})" if self.kernel else ""
        return f"layer {self.layer}{kernel}, operator {self.operator}{line}{of}"


class RecordedSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps, from 1, in which a program records its values, and these values by number."""

    first: int
    last: int
    values: tuple[RecordedValue, ...]


class MeasuredSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps in which a program measures its values, the multiples of `every`; values: by number."""

    every: int
    values: tuple[RecordedValue, ...]


class Visit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a function of the program.

    groups: indices of the groups whose weights it reads.
    gradients: groups whose gradients it writes or accumulates.
    completes: groups whose gradients are complete after it, and whose weights are not read again in
        the step.
    frees: buffers that no later visit uses.
    """

    function: str
    groups: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    completes: tuple[int, ...] = ()
    frees: tuple[str, ...] = ()


class MinibatchVisit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Visit, by its index in the plan, of one minibatch."""

    visit: int
    minibatch: int


class BatchSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Split of a step's batch; compile options that are stored in the plan.

    Each of `systems` computes an equal share of the batch, and each of its `replicas` of the model
    an equal part of this share, in `micro_batches` one after the other. A micro-batch is split into
    `minibatches_in_flight`. accumulates: a step may have several batches.
    """

    systems: Positive = 1
    micro_batches: Positive = 1
    replicas: Positive = 1
    minibatches_in_flight: Positive = 1
    accumulates: bool = False

    @property
    def at_once(self) -> int:
        """Number of minibatches that have buffers at a time, over all replicas."""
        return self.replicas * self.minibatches_in_flight

    @property
    def minibatches(self) -> int:
        """Number of minibatches of a step on one system, over all replicas and micro-batches."""
        return self.micro_batches * self.at_once

    @property
    def parts(self) -> int:
        """Number of minibatches of a step, over all systems."""
        return self.systems * self.minibatches


class PlanOptions(BatchSplit, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Compile options that the plan records.

    kernels: form of the kernels; forms differ in the last digits. products: matrix products of
    machine code or of BLAS, or the instructions for products of two bfloat16 operands.
    chosen_for: checksums of the models for which the compiler chose options.

    """

    mode: ExecutionMode
    run_mode: RunMode
    kernels: Literal["numpy", "llvm"] = "numpy"
    products: Products = "own"
    chosen_for: tuple[str, ...] = ()

    @property
    def is_streaming(self) -> bool:
        """Return whether weights are streamed to the wafer group by group."""
        return self.mode is ExecutionMode.WEIGHT_STREAMING

    def recorded(self) -> dict[str, Any]:
        """Return the options that a plan records, by name."""
        return {name: getattr(self, name) for name in PlanOptions.__struct_fields__}


class Plan(PlanOptions, frozen=True, forbid_unknown_fields=True):
    """plan.json.

    arena_bytes: total memory that the wafer allocates. With `store_in_arena` the store is the
        arena's first `store.nbytes` bytes.
    visits: those of a step, in order.
    loss_buffer: name of a float64[1] arena buffer that has, before any group's gradients are
        complete, the *sum* of the loss over the batch (None: no loss).
    loss_count: index in the batch's counts of the number to divide it by; None: the number of valid
        samples.
    learning_rate: schedule of a training's updates, or the index of the step's number that is the
        rate.
    clip_norm: global norm that gradients are clipped to.
    counts_padding: layer and operator whose result would include the padding of an incomplete
        batch; such batches are refused (None: there is none).

    marks: layers that the program reports, by index.
    recording, measuring: values that the program writes to files, or whose ranges it writes.
    machine_code_share, bfloat16_share: share of the FLOPs in machine code, and in products by
        instructions for bfloat16.

    One update is that of all systems, replicas and minibatches.

    With several minibatches the program works on one minibatch at a time. `inputs` are those of the
    global batch; everything else describes one minibatch. Buffers of minibatch j are shifted by j *
    `minibatch_stride_bytes`, and `schedule` is the order of a replica's calls. Gradients of all but
    the first minibatch are written to the arena at `partial_offset_bytes` and then added to the
    store's; so are those of all minibatches if they are 16-bit words that the store sums in
    float32. With one minibatch the schedule is `visits`. Replicas are described by
    `csrun.executable.replica_plan`.

    Before that, a batch is split into `micro_batches`, which are computed one after the other in
    the same memory; minibatches are parts of a micro-batch. The first micro-batch writes its
    gradients to the store, the others add theirs, and the last one completes them. Outputs of each
    minibatch are kept from `kept_offset_bytes` on. Visits of the `recomputed` segments occur twice.

    With `accumulates` a step may have several batches, also of different programs: the first batch
    writes its gradients to the store, the others add theirs.
    """

    compiler_version: str
    checksum: str
    precision: str  # float32 | float64: type of arithmetic, master weights and optimizer state
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
        """Return whether the wafer's gradients are 16-bit words, which the store sums in
        float32.
        """
        has_sums = self.store.gradients_offset is not None and not self.store.has_half_gradients
        return self.storage is not None and has_sums

    @property
    def order(self) -> tuple[Visit, ...]:
        """Visits of a step, micro-batch by micro-batch; only the last micro-batch completes
        groups.
        """
        earlier = tuple(msgspec.structs.replace(visit, completes=()) for visit in self.visits)
        return (self.micro_batches - 1) * earlier + self.visits

    @property
    def deliveries(self) -> tuple[int, ...]:
        """Groups in the order in which a step completes their gradients."""
        return tuple(group for visit in self.visits for group in visit.completes)

    @property
    def commit(self) -> Commit:
        """Time of the updates: clipping and loss scaling need all gradients first."""
        return Commit.AFTER_ALL_GRADIENTS if self.measures else Commit.IMMEDIATE

    @property
    def has_window(self) -> bool:
        """Return whether the store's gradients share a window; otherwise each group has its own
        region.
        """
        adds = self.micro_batches > 1 or self.accumulates
        return self.commit is Commit.IMMEDIATE and not adds

    @property
    def placed_pes(self) -> int:
        """PEs of the fabric that have a layer."""
        return sum(rectangle.pes for rectangle in {region.rectangle for region in self.floor_plan})
