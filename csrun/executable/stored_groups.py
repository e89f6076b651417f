"""Parameters, layers and groups of a plan, and their layout in the store."""

from enum import StrEnum
from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]


class InitializerKind(StrEnum):
    """Kind of a parameter's initializer."""

    ZEROS = "zeros"
    ONES = "ones"
    UNIFORM = "uniform"  # uniform in [-scale, scale)
    NORMAL = "normal"  # normal with standard deviation `scale`


class Initializer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Initial value of a parameter, drawn by Philox from (run seed, parameter name)."""

    kind: InitializerKind
    scale: float = 0.0


class TensorShard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shard of a tensor with `rows` rows, starting at row `first`.

    Rows are those of the store: for a transposed tensor they are the model's columns.
    """

    tensor: str
    rows: int
    first: int


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A weight tensor. `offset_bytes` is relative to the start of each flat region of the store.

    is_state: the program itself computes its next value, in place of a gradient; it has no
        optimizer slots, and is float32 in mixed precision, too.
    part: the shard of a tensor that it is, if it is one; all shards of a tensor are consecutive in
        each region.
    is_transposed: stored transposed; the shape is the one in the store.
    is_of_step: a state passed between the programs of one step, not part of checkpoints.
    """

    name: str
    layer: str
    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int
    initializer: Initializer
    is_state: bool = False
    part: TensorShard | None = None
    is_transposed: bool = False
    is_of_step: bool = False


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel with weights, and the operators after it up to the next one.

    FLOPs are those of one minibatch.
    activation_bytes: size of the arrays that these kernels write for one minibatch.
    crossing_bytes: size of those arrays that other layers read.
    loads: number of times per step that its weights are sent to the wafer, unless they are
        resident.
    """

    name: str
    kernel: str
    group: int
    parameters: tuple[str, ...]
    forward_flops: int
    backward_flops: int
    weight_bytes: int
    activation_bytes: int
    crossing_bytes: int = 0
    loads: int = 1


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Consecutive layers whose weights are sent together: one contiguous range of each flat region.

    slot_offset_bytes: location of the weights in the arena in weight streaming; slots of groups may
        overlap. None if the weights are in the arena's store.
    gradients_offset_bytes: location of the gradients in the store; those of groups that are not
        live at the same time may overlap. None without gradients.
    half_bytes: size of the weights as 16-bit words, followed by the states (None: float32).
    """

    index: int
    layers: tuple[str, ...]
    offset_bytes: int
    nbytes: int
    slot_offset_bytes: int | None = None
    gradients_offset_bytes: int | None = None
    half_bytes: int | None = None

    @property
    def sent_bytes(self) -> int:
        """Number of bytes of its weights that are sent to the wafer."""
        return self.nbytes if self.half_bytes is None else self.half_bytes


class Slot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Flat region of optimizer state, e.g. `momentum`, and its initial value."""

    name: str
    offset_bytes: int
    first_value: float = 0.0


class StoreLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Layout of the store: byte offsets of its flat regions.

    `slots` are those of the optimizer, each as large as the weights. Without training there are no
    gradients and no slots. In weight streaming the gradients share a window of those in flight
    between the wafer and MemoryX, unless all are needed before the first update, or are sums.
    `gradients_bytes` is their size per system; the gradients of several systems follow each other.
    It may be larger than this program needs if several programs share the store.
    `numbers` come with each step, for instance its learning rate: float64[MOST_STEPS, numbers + 1];
        step s has row s mod MOST_STEPS. The chief writes them before it orders the steps. The last
        column is the norm of the step's gradients, which updates write if they clip.
        `scale_numbers` more columns are the state of the loss scale after the step.

    In mixed precision `words_offset` is the region of the weights as 16-bit words, half as large:
    word i is that of weight i. Updates write it, and the wafer reads it. None if weights are
    narrowed when they are sent. With `has_half_gradients` the gradients are words, too; otherwise
    they are float32 sums of the wafer's words.
    """

    nbytes: int
    weights_offset: int
    gradients_offset: int | None
    slots: tuple[Slot, ...]
    numbers: int = 0
    numbers_offset: int | None = None
    gradients_bytes: int = 0
    losses_offset: int | None = None
    scale_numbers: int = 0
    words_offset: int | None = None
    has_half_gradients: bool = False
