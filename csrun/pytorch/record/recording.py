"""A recorded step, frozen: operators in their order, what they read, and what comes of them."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

STRIDED = "aten.as_strided.default"  # recorded with a function of csrun's own


@dataclass(frozen=True)
class Ref:
    """A value of a recording, by its number."""

    number: int


@dataclass(frozen=True)
class Kind:
    """A value's shape and element type."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


class Source(StrEnum):
    """Where a value comes from that no operator makes."""

    INPUT = "input"  # an array of the batch
    PARAMETER = "parameter"
    BUFFER = "buffer"  # a float buffer of the model: a state
    CONSTANT = "constant"  # a tensor that was made from nothing in the batch or the model


@dataclass(frozen=True, eq=False)
class Leaf:
    """A value that is given. `tensor` holds its numbers in step 1.

    name: PyTorch's of a parameter or buffer, the batch's of an input, the line of a constant.
    """

    value: Ref
    source: Source
    name: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class Operator:
    """One operator. Tensors among its arguments are Refs.

    name: ATen's with the overload, as aten.addmm.default, or csrun's, of what is taken whole.
    results: a Ref for each tensor that it gives, None where it gives none. line: the user's; one of
    the way back (is_backward) has that of the forward operator. forward: the number of the operator
    that this is the way back of, where that is taken whole.
    """

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    results: tuple[Ref | None, ...]
    line: str
    scope: str
    is_backward: bool = False
    forward: int | None = None

    @cached_property
    def operands(self) -> tuple[Ref, ...]:
        """The values that it reads, in order."""
        leaves = tree_leaves((self.arguments, dict(self.keywords)))
        return tuple(leaf for leaf in leaves if isinstance(leaf, Ref))


def returns_view(call: Any) -> bool:
    """Return whether an operator of ATen's gives a view of its operand."""
    returns = call._schema.returns if isinstance(call, torch._ops.OpOverload) else ()
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


@dataclass(frozen=True)
class Read:
    """A value that the loop asked for, and where."""

    value: Ref
    line: str


@dataclass(frozen=True)
class Recording:
    """A step of the user's loop, from its batch to `optimizer.step()`, or to the end of evaluation.

    kinds: of each value, by its number. leaves: inputs in the batch's order, then parameters,
    buffers and constants as they were met. loss: what `backward()` was called on; `forward_end` is
    how many operators were there before, `backward_end` after it. gradients: by PyTorch's name of
    the parameter, as they stand at the step, after all edits; first_gradients: before these.
    written: the next value of each buffer that forward changes. counters: by how much a step
    changes integer buffers, such as num_batches_tracked. reads: values that the loop asked for, in
    order. without_gradient: parameters that want one and have none. zeros: those whose gradient is
    of zeros, which zero_grad(set_to_none=False) has left.
    """

    operators: tuple[Operator, ...]
    kinds: tuple[Kind, ...]
    leaves: tuple[Leaf, ...]
    loss: Ref | None
    loss_line: str
    forward_end: int
    backward_end: int
    gradients: Mapping[str, Ref]
    first_gradients: Mapping[str, Ref]
    written: Mapping[str, Ref]
    counters: Mapping[str, int]
    reads: tuple[Read, ...]
    training: bool
    without_gradient: tuple[str, ...]
    zeros: frozenset[str] = frozenset()

    def of(self, source: Source) -> tuple[Leaf, ...]:
        """The leaves of one source, in order."""
        return tuple(leaf for leaf in self.leaves if leaf.source is source)

    def viewed_parameter(self, value: Ref) -> str:
        """Return the name of the parameter that a value is a view of, or empty text."""
        names = {leaf.value: leaf.name for leaf in self.of(Source.PARAMETER)}
        while value not in names:
            op = self.maker.get(value)
            if op is None or not (op.name == STRIDED or returns_view(op.call)):
                return ""
            value = op.operands[0]
        return names[value]

    @cached_property
    def maker(self) -> Mapping[Ref, Operator]:
        """The operator that makes each value that is no leaf."""
        return {r: op for op in self.operators for r in op.results if r is not None}

    @property
    def before_edits(self) -> list[Ref]:
        """The values that a training step is there for, apart from edits of gradients."""
        assert self.loss is not None, "of a training"
        return [self.loss, *self.first_gradients.values(), *self.written.values()]

    def kind(self, value: Ref) -> Kind:
        return self.kinds[value.number]


def ancestors(recording: Recording, values: Iterable[Ref], known: Container[Ref] = ()) -> set[Ref]:
    """Return values and all that they are computed from, down to the known ones."""
    found = set(values)
    for op in reversed(recording.operators):
        if any(r in found and r not in known for r in op.results):
            found.update(op.operands)
    return found
