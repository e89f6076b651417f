"""Graph of a recorded step: operators in order, their operands, and the step's results."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from operator import is_
from typing import Any, NamedTuple

import msgspec
import torch
from torch.utils._pytree import TreeSpec, tree_flatten

from csrun.pytorch.record.arguments import leaves_of

STRIDED = "aten.as_strided.default"  # recorded with csrun's own function
HOST = "host::"  # prefix of the name of an operator that the host computes in each step


class Ref(msgspec.Struct, frozen=True):
    """A value of a recording, by its number. A Struct is hashed and compared in C."""

    number: int

    @staticmethod
    @cache
    def of(number: int) -> "Ref":
        """Return the single object of a number, which is compared by identity."""
        return Ref(number)


@dataclass(frozen=True)
class TensorKind:
    """A value's shape and element type."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


class LeafSource(StrEnum):
    """Origin of a value that is not an operator's result."""

    INPUT = "input"  # a tensor of the batch
    PARAMETER = "parameter"
    BUFFER = "buffer"  # a float buffer of the model
    CONSTANT = "constant"  # a tensor that depends on neither batch nor model
    # a tensor that the script creates in each step, such as random numbers
    SCRIPT = "script tensor"


@dataclass(frozen=True, eq=False)
class GraphLeaf:
    """A value that is not an operator's result. tensor: its value in step 1.

    name: PyTorch's for a parameter or buffer, batch_N for an input, the user's line for others.
    """

    value: Ref
    source: LeafSource
    name: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class RecordedOperator:
    """One operator call; tensors among its arguments are Refs.

    name: ATen's with the overload, such as aten.addmm.default, or csrun's for a composite.
    results: a Ref per tensor, None if the operator returns none.
    line: the user's; an operator of the backward pass (is_backward) has that of its forward
        operator.
    forward: for a composite's backward, the number of the forward operator.
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

    @property
    def is_of_host(self) -> bool:
        """True if the host computes it in each step, for the program."""
        return self.name.startswith(HOST)

    @cached_property
    def operands(self) -> tuple[Ref, ...]:
        """Values that the operator reads, in order."""
        leaves = leaves_of(self.arguments, self.keywords)
        return tuple(leaf for leaf in leaves if isinstance(leaf, Ref))

    @cached_property
    def flat(self) -> tuple[list[Any], TreeSpec]:
        """Leaves of its arguments and keywords, and their structure."""
        leaves, spec = tree_flatten((self.arguments, dict(self.keywords)))
        return leaves, spec


@cache
def returns_view(call: Any) -> bool:
    """Return whether an operator of ATen's gives a view of its operand."""
    returns = call._schema.returns if isinstance(call, torch._ops.OpOverload) else ()
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


class NumberPlace(NamedTuple):
    """Position of a Python number in a recording: an operator's argument."""

    operator: int
    argument: int


@dataclass(frozen=True)
class LoopRead:
    """A value that the loop read, with its line."""

    value: Ref
    line: str


@dataclass(frozen=True)
class Recording:
    """A step of the user's loop, from its batch to `optimizer.step()`, or to the end of evaluation.

    kinds: of each value, by its number.
    leaves: inputs in the batch's order, then parameters, buffers and constants in order of use.
    loss: of `backward()`.
    forward_end, backward_end: number of operators before and after that call.
    gradients: by parameter, after all edits.
    first_gradients: before the edits.
    written: the next value of each buffer that forward updates.
    counters: increments of integer buffers per step, such as num_batches_tracked.
    reads: values that the loop read, in order.
    without_gradient: parameters that require a gradient but have none.
    zeros: parameters with the zeros of zero_grad(set_to_none=False).
    script_numbers: positions of numbers of the script that are leaves instead of part of the graph.
    draws: random numbers that forward draws, in order.
    host_leaves: results of operators that the host computes, which a program takes with each step.
    shaped: those whose shapes forward's Python may read.
    row_axes: axis of each value with padded rows, of which a step has the first ones.
    """

    operators: tuple[RecordedOperator, ...]
    kinds: tuple[TensorKind, ...]
    leaves: tuple[GraphLeaf, ...]
    loss: Ref | None
    loss_line: str
    forward_end: int
    backward_end: int
    gradients: Mapping[str, Ref]
    first_gradients: Mapping[str, Ref]
    written: Mapping[str, Ref]
    counters: Mapping[str, int]
    reads: tuple[LoopRead, ...]
    training: bool
    without_gradient: tuple[str, ...]
    zeros: frozenset[str] = frozenset()
    script_numbers: tuple[NumberPlace, ...] = ()
    draws: tuple[str, ...] = ()
    host_leaves: tuple[GraphLeaf, ...] = ()
    shaped: frozenset[Ref] = frozenset()
    row_axes: Mapping[Ref, int] = field(default_factory=dict)

    def of(self, source: LeafSource) -> tuple[GraphLeaf, ...]:
        """Return the leaves of one source, in order."""
        return tuple(leaf for leaf in self.leaves if leaf.source is source)

    @cached_property
    def stored_names(self) -> tuple[str, ...]:
        """Names of the parameters and buffers, in order."""
        stored = LeafSource.PARAMETER, LeafSource.BUFFER
        return tuple(leaf.name for leaf in self.leaves if leaf.source in stored)

    def used_leaves(self, goals: Iterable[Ref]) -> list[GraphLeaf]:
        """Return the leaves that operators read, or that are goals, by their numbers."""
        used = self._operands.union(goals)
        found = [leaf for leaf in self.leaves if leaf.value in used]
        return sorted(found, key=lambda leaf: leaf.value.number)

    @cached_property
    def _operands(self) -> frozenset[Ref]:
        return frozenset(ref for op in self.operators for ref in op.operands)

    def has_operators_of(self, other: "Recording") -> bool:
        """Return whether the operators are the same objects as in another recording."""
        if len(self.operators) != len(other.operators):
            return False
        if not all(map(is_, self.operators, other.operators)):
            return False
        vars(self)["_operands"] = other._operands  # computing it takes a while
        return True

    @property
    def program_inputs(self) -> tuple[GraphLeaf, ...]:
        """Leaves that a program takes with each step, in order."""
        sources = LeafSource.INPUT, LeafSource.SCRIPT
        given = (leaf for leaf in self.leaves if leaf.source in sources)
        return (*given, *self.host_leaves)

    @property
    def script_leaves(self) -> tuple[GraphLeaf, ...]:
        """Leaves that a program takes with each step and no loader gives, in order."""
        return (*self.of(LeafSource.SCRIPT), *self.host_leaves)

    def with_script_tensors(self, values: Collection[Ref]) -> "Recording":
        """Return the recording with constants replaced by tensors that the script creates in each
        step.
        """
        if not values:
            return self
        leaves = (
            replace(leaf, source=LeafSource.SCRIPT) if leaf.value in values else leaf
            for leaf in self.leaves
        )
        return replace(self, leaves=tuple(leaves))

    def with_script_numbers(self, places: Sequence[NumberPlace]) -> "Recording":
        """Return the recording with numbers among operators' arguments replaced by tensors of the
        script.

        Each is a leaf without axes, of the type of the operator's result.
        """
        if all(place in self.script_numbers for place in places):
            return self
        operators, kinds, leaves = list(self.operators), list(self.kinds), list(self.leaves)
        for place in (new := [p for p in places if p not in self.script_numbers]):
            op = operators[place.operator]
            result = op.results[0]
            assert result is not None, "it gives a tensor"
            number = torch.tensor(op.arguments[place.argument], dtype=self.kind(result).dtype)
            ref = Ref.of(len(kinds))
            kinds.append(TensorKind((), number.dtype))
            leaves.append(GraphLeaf(ref, LeafSource.SCRIPT, op.line, number))
            arguments = [*op.arguments]
            arguments[place.argument] = ref
            operators[place.operator] = replace(op, arguments=tuple(arguments))
        return replace(
            self,
            operators=tuple(operators),
            kinds=tuple(kinds),
            leaves=tuple(leaves),
            script_numbers=(*self.script_numbers, *new),
        )

    def viewed_parameter(self, value: Ref) -> str:
        """Return the name of the parameter that a value is a view of, or empty text."""
        names = {leaf.value: leaf.name for leaf in self.of(LeafSource.PARAMETER)}
        while value not in names:
            op = self.maker.get(value)
            if op is None or not (op.name == STRIDED or returns_view(op.call)):
                return ""
            value = op.operands[0]
        return names[value]

    @cached_property
    def canonical_graphs(self) -> dict[tuple[Ref, ...], Any]:
        """Graphs of its values that were compared with other recordings'."""
        return {}

    @cached_property
    def maker(self) -> Mapping[Ref, RecordedOperator]:
        """Operator of each value, except leaves."""
        return {r: op for op in self.operators for r in op.results if r is not None}

    @property
    def before_edits(self) -> list[Ref]:
        """Results of a training step before edits of gradients."""
        assert self.loss is not None, "of a training"
        return [self.loss, *self.first_gradients.values(), *self.written.values()]

    def kind(self, value: Ref) -> TensorKind:
        return self.kinds[value.number]


def ancestors(recording: Recording, values: Iterable[Ref], known: Container[Ref] = ()) -> set[Ref]:
    """Return values and all that they are computed from, down to the known ones."""
    return ancestors_of(recording.operators, values, known)


def ancestors_of(
    operators: Sequence[RecordedOperator], values: Iterable[Ref], known: Container[Ref] = ()
) -> set[Ref]:
    """Return values and all that operators compute them from, down to the known ones."""
    found = set(values)
    for op in reversed(operators):
        if any(r in found and r not in known for r in op.results):
            found.update(op.operands)
    return found
