"""Values of a step for the loop, and the sources of their numbers."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol
from weakref import ReferenceType

import torch

from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.step_status import StepStatus

MOST_SMALL_ELEMENTS = 64  # of a small output, such as a loss of each sample
NORM = Ref(-1)  # of a step's gradients before clipping; not an output of the program


@dataclass(frozen=True, eq=False)
class Slot:
    """A value that each step has for the loop: an array of the batch, or a result.

    meta: tensor of its shape, type and requires_grad, without numbers.
    is_loss: backward() is called on it.
    is_input: it is an array of the batch.
    is_argument: it is a tensor of the script that each step passes to a call.
    is_gradient: it is a parameter's gradient.
    rows_axis: axis of padded rows, None without one.
    weight: name of the parameter that it is a view of.
    made: its latest tokens, which may be reused.
    """

    value: Ref
    meta: torch.Tensor
    is_loss: bool = False
    is_input: bool = False
    weight: str = ""
    is_argument: bool = False
    is_gradient: bool = False
    rows_axis: int | None = None
    made: list[Any] = field(default_factory=list)

    @property
    def comes_with_step(self) -> bool:
        """True if it is known in each step without being an output of the program."""
        return self.is_loss or self.value is NORM

    @cached_property
    def is_output(self) -> bool:
        """True if the program returns it where the loop reads it."""
        return not (self.comes_with_step or self.is_input)

    def fits(self, value: Any) -> bool:
        """True if a tensor of the script has the same geometry."""
        return (
            type(value) is torch.Tensor
            and value.shape == self.meta.shape
            and value.dtype == self.meta.dtype
            and value.layout is torch.strided
            and not value.requires_grad
        )


@dataclass(eq=False)
class StepOutputs:
    """Values of one step, as far as they are known and requested.

    One is created per step, so fields that few steps set are class attributes.

    number: among the steps of all loops.
    batch: returns it as the loader made it.
    updates: number of `optimizer.step()` calls before it.
    outputs: numbers of its values other than the loss.
    loss: None until it is known.
    written_loss: its loss after a write of the loop, None without one.
    has_loss_views: the loop has views of its loss, which would not see a write.
    trained: number of training steps once it has run.
    waiting: computations on its values that are still referenced.
    requested: values that are read.
    detached: tokens that the loop has detached, and may read later.
    others: tokens of all its values except loss and batch.
    recorded: traced tensors of a step that began on tokens and is recorded after all.
    norm_edit: returns the edit of its gradients that computes their norm, or None.
    edits: the loop's edits of its gradients, once all are known.
    gradients_read: number of their values that were read.
    rows: number of rows that its mask selects, if its program pads them.
    """

    number: int
    status: StepStatus
    batch: Callable[[], Any] | None = None
    updates: int = 0
    outputs: dict[Ref, torch.Tensor] = field(default_factory=dict)
    loss: float | None = field(default=None, init=False)
    written_loss: Any = field(default=None, init=False)
    has_loss_views: bool = field(default=False, init=False)
    trained: int | None = field(default=None, init=False)
    waiting: "tuple[ReferenceType[Deferred], ...]" = field(default=(), init=False)
    requested: tuple[Ref, ...] = field(default=(), init=False)
    detached: "tuple[ReferenceType[Any], ...]" = field(default=(), init=False)
    others: "tuple[ReferenceType[Any], ...]" = field(default=(), init=False)
    recorded: Mapping[Slot, TracedTensor] | None = field(default=None, init=False)
    norm_edit: Callable[[], Any] | None = field(default=None, init=False)
    edits: Sequence[Any] | None = field(default=None, init=False)
    _find_gradients: "FindGradients | None" = field(default=None, init=False)
    _gradients: "ReadGradients | None" = field(default=None, init=False)
    gradients_read: int = field(default=0, init=False)
    rows: int | None = field(default=None, init=False)

    def set_gradients(self, find: "FindGradients | None") -> None:
        """Set a function that returns its gradients; None if they are a sum over batches."""
        self._find_gradients, self._gradients = find, None

    @property
    def gradients(self) -> "ReadGradients | None":
        """Its gradients as they are read; None if they are the sum of several batches."""
        if self._gradients is None and self._find_gradients is not None:
            self._gradients = self._find_gradients(self)
        return self._gradients

    def sizes_of(self, slot: Slot) -> tuple[int, ...]:
        """Return the shape of a value in this step."""
        sizes, axis = tuple(slot.meta.shape), slot.rows_axis
        if axis is None:
            return sizes
        assert self.rows is not None, "they are counted before the first call"
        return *sizes[:axis], self.rows, *sizes[axis + 1 :]

    def without_padding(self, slot: Slot | None, numbers: torch.Tensor) -> torch.Tensor:
        """Return the numbers of a value that the program has returned with padded rows."""
        if slot is None or slot.rows_axis is None:
            return numbers
        assert self.rows is not None, "they are counted before the step"
        return numbers.narrow(slot.rows_axis, 0, self.rows)

    def request(self, values: Iterable[Ref]) -> None:
        """Note that these values are read."""
        self.requested = tuple(dict.fromkeys((*self.requested, *values)))

    def wanted(self) -> dict[Ref, None]:
        """Return the values that are needed of it, except the loss."""
        if not (self.waiting or self.requested or self.detached):
            return {}
        found = dict.fromkeys(self.requested)
        found.update((t.slot.value, None) for each in self.detached if (t := each()) is not None)
        for waiting in self.waiting:
            if (computation := waiting()) is not None:
                places = (p for p in computation.own_places() if p.step is self)
                found.update((p.slot.value, None) for p in places if not p.slot.comes_with_step)
        return found

    def small_referenced_values(self) -> dict[Ref, None]:
        """Return the outputs of at most MOST_SMALL_ELEMENTS elements whose tokens the loop still
        references.
        """
        tokens = (token for each in self.others if (token := each()) is not None)
        slots = (token.slot for token in tokens)
        small = (x for x in slots if x.is_output and x.meta.numel() <= MOST_SMALL_ELEMENTS)
        return {x.value: None for x in small}

    def has_only_requested(self, outputs: Collection[Ref]) -> bool:
        """True if only these values may be read of it later."""
        wanted = self.wanted()
        if not all(ref in outputs for ref in wanted):
            return False
        for each in self.others:
            token = each()
            if token is None or token.step is not self:  # dropped, or reused by another step
                continue
            if token.slot.value not in wanted:
                return False
        return True

    def settle(self) -> None:
        """Compute what waits for it, so that its values need not be kept."""
        waiting, self.waiting = self.waiting, ()
        for each in waiting:
            computation = each()
            if computation is not None and computation.is_ready:
                computation.compute()


class ReadGradients(Protocol):
    """The gradients of a step, as they are read."""

    def of_parameter(self, name: str, /) -> torch.Tensor:
        """Return a parameter's gradient as it is now."""

    def of_edit(self, edit: Any, leaf: int, /) -> torch.Tensor:
        """Return a result of an edit as it is now."""


FindGradients = Callable[[StepOutputs], ReadGradients]


class Deferred(Protocol):
    """A computation on values of steps, made when its result is read."""

    def own_places(self) -> list["StepValue"]:
        """The values of steps among its arguments."""

    @property
    def is_ready(self) -> bool:
        """True if all of its arguments are known."""

    def compute(self) -> Any:
        """Compute and keep its results."""

    @property
    def is_of_recorded(self) -> bool:
        """True if values of recorded steps are among its arguments."""

    def settle(self) -> None:
        """Replace finished recorded steps by their numbers."""


class Reader(Protocol):
    """Access to the numbers of values."""

    def read(self, step: StepOutputs, slot: Slot) -> torch.Tensor:
        """Return the numbers of a value."""

    def loss(self, step: StepOutputs) -> float:
        """Return the loss of a step."""

    def of_gradients(self, step: StepOutputs, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the numbers of a value that is computed from the gradients of a step."""

    def settle_later(self, computation: Deferred) -> None:
        """Settle a computation when the current recorded step has ended."""

    def want(self, places: Sequence["StepValue"]) -> None:
        """Request all of these values, which are about to be read."""

    def require_current(self, places: Sequence["StepValue"]) -> None:
        """Raises: UsageError for a view of a weight that the optimizer has changed since"""


class Owner(Protocol):
    """The loop, as used by its tokens."""

    @property
    def readback(self) -> Reader:
        """Access to the numbers."""

    def apply(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Handle a call of a PyTorch function on tokens."""

    def backward(self, token: Any) -> None:
        """Handle the loop's call of `backward()`."""


@dataclass(frozen=True, eq=False, slots=True)
class StepValue:
    """A value of a step. is_detached: no gradient flows through it."""

    step: StepOutputs
    slot: Slot
    is_detached: bool = False

    @property
    def is_known(self) -> bool:
        """True if its numbers are known."""
        if self.slot.is_loss:
            return self.step.loss is not None
        return self.slot.value in self.step.outputs
