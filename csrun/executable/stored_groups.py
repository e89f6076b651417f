"""Parameters, layers and groups of a plan, and where the store has them."""

from enum import StrEnum
from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]


class InitializerKind(StrEnum):
    """Kind of a parameter's initializer."""

    ZEROS = "zeros"
    ONES = "ones"
    UNIFORM = "uniform"  # in [-scale, scale)
    NORMAL = "normal"  # standard deviation `scale`


class Initializer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter's first value, drawn by Philox from (run seed, parameter name)."""

    kind: InitializerKind
    scale: float = 0.0


class TensorShard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shard of a tensor with `rows` rows that a parameter is, from `first` on.

    Rows are those of the store: of a tensor that is transposed they are its columns.
    """

    tensor: str
    rows: int
    first: int


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A weight tensor. `offset_bytes` is relative to the start of each flat region of the store.

    is_state: the program writes its next value where it writes gradients of others, and no
    optimizer has slots for it; it is float32 in mixed precision, too. part: of which tensor it is a
    part, if it is one; all parts of a tensor lie one after the other, in each region. is_turned:
    the store has the transpose of what the model has, and this is its shape there. is_of_step: a
    state that programs of one step pass on, and that no checkpoint has.
    """

    name: str
    layer: str
    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int
    initializer: Initializer
    is_state: bool = False
    part: TensorShard | None = None
    is_turned: bool = False
    is_of_step: bool = False


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One matched kernel that owns weights, with the operators that follow it.

    FLOPs are those of a minibatch; activation_bytes of what its kernels write for one, with those
    of operators without weights that follow it; crossing_bytes of what other layers read of that.
    loads: how often its weights come to the wafer in a step, where they are not there already.
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
    """Consecutive layers whose weights travel together: one contiguous range of each flat region.

    `slot_offset_bytes` is where the arena holds a copy of the weights in weight streaming, over or
    next to those of other groups. None when the weights live in the arena's store.
    `gradients_offset_bytes` is where the store's gradients have those of the group, over or next to
    those of other groups that are not alive meanwhile. None when it has none. `half_bytes` is the
    length of its weights as 16-bit words, with its states behind them as they are (None: float32).
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
        """Bytes of its weights on their way to the wafer, and there."""
        return self.nbytes if self.half_bytes is None else self.half_bytes


class Slot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A flat region of optimizer state, e.g. `momentum`, and the value that it begins with."""

    name: str
    offset_bytes: int
    first_value: float = 0.0


class StoreLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Layout of the store: byte offsets of its flat regions.

    `slots` are the optimizer's, each as long as the weights; without training there are no
    gradients and no slots. In weight streaming the gradients are a window, of those in flight
    between the wafer and MemoryX, unless all must be there before the first update, or are sums.
    `gradients_bytes` is their length, of each of several systems, whose gradients lie one after the
    other; it may be more than a program needs, where the store is that of several. `numbers` come
    with each step, as its learning rate may: float64[MOST_STEPS, numbers + 1], the row of a step
    is its remainder. The chief writes them before it orders the steps; the last one is the norm of
    the step's gradients, which updates write where they clip them. `scale_numbers` more are the
    state of the loss's scale after the step.

    In mixed precision `words_offset` is the region of the weights as 16-bit words, half as long:
    word i is that of weight i. Updates write it, the wafer reads it. With `has_half_gradients` the
    gradients are words, too, else float32 sums of those that the wafer computes.
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
