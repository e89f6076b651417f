"""Embedding: rows of a table, and the gradient of the table."""

from dataclasses import dataclass, replace
from math import prod
from typing import Self

from xdsl.ir import Operation

from csrun.cirh.batch_axes.label_sources import source_of_labels
from csrun.cirh.ops.embedding import EmbeddingDenseBackwardOp, EmbeddingOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name, Phase, bound_struct, indices_inside

IMPORT = "from csrun.kernels import embedding"


@dataclass(frozen=True)
class Lookup(Kernel):
    """out = the row of the weight that each index names.

    is_checked: whether the indices are known to be in range.

    Shapes: weight [V, D], indices [N] -> out [N, D]
    """

    weight: Array
    indices: Array
    out: Array
    is_checked: bool

    kind = "embedding"

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.weight, self.indices

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    def prepare(self, name: Name) -> list[str]:
        return [IMPORT]

    def check(self, name: Name) -> list[str]:
        """Range check of indices that the host has not validated."""
        if self.is_checked:
            return []
        return indices_inside(name(self.indices), self.weight.shape[0], self.layer)

    def emit(self, name: Name) -> list[str]:
        arguments = ", ".join(map(name, (self.weight, self.indices, self.out)))
        return [f"embedding.lookup({arguments})"]


@dataclass(frozen=True)
class LookupBackward(Kernel):
    """out = for each row of the weight the sum of the gradients of its lookups.

    With `adds` it is accumulated.

    Shapes: grad [N, D], indices [N] -> out [V, D]
    """

    grad: Array
    indices: Array
    out: Array
    padding: int
    adds: bool = False

    kind = "embedding"
    phase = Phase.BACKWARD

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.grad, self.indices

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        return self._sorting

    @property
    def _sorting(self) -> tuple[Array, ...]:
        """Return the gradients sorted by row, the permutation, and sums to add to."""
        stem, count = self.grad.name, self.indices.shape[0]
        sums = Array(f"{stem}/sums", self.grad.shape, self.grad.dtype)
        return (
            Array(f"{stem}/by_row", self.grad.shape, self.grad.dtype),
            Array(f"{stem}/numbers", (3, count), "int64"),
            Array(f"{stem}/changes", (count,), "bool"),
            *([sums] if self.adds else []),
        )

    @property
    def flops(self) -> int:
        """An addition for each value."""
        return prod(self.grad.shape)

    def adding(self) -> Self:
        return replace(self, adds=True)

    def prepare(self, name: Name) -> list[str]:
        """Bind the positions and the scratch arrays."""
        ordered, numbers, changes, *sums = map(name, self._sorting)
        count = self.indices.shape[0]
        fields = {"positions": f"positions_{count}", "ordered": ordered, "numbers": numbers}
        fields |= {"changes": changes, **({"sums": sums[0]} if sums else {})}
        return [
            IMPORT,
            f"positions_{count} = np.arange({count})",
            bound_struct(self._scatter(name), "embedding.Scatter", fields),
        ]

    def emit(self, name: Name) -> list[str]:
        arrays = ", ".join(map(name, (self.grad, self.indices, self.out)))
        return [f"embedding.add_up({arrays}, {self._scatter(name)}, {self.padding})"]

    def _scatter(self, name: Name) -> str:
        return f"{name(self.scratch[0])}_{'adding' if self.adds else 'writing'}"


def match_lookup(operation: Operation, graph: Graph) -> Kernel:
    assert isinstance(operation, EmbeddingOp)
    graph.take(operation)
    return Lookup(
        graph.layer_of(operation),
        graph.array(operation.weight),
        rows_of(graph.array(operation.indices), ()),
        rows_of(graph.array(operation.out), graph.array(operation.weight).shape[1:]),
        source_of_labels(operation.indices) is not None,
    )


def match_backward(operation: Operation, graph: Graph) -> Kernel:
    assert isinstance(operation, EmbeddingDenseBackwardOp)
    graph.take(operation)
    out = graph.array(operation.out)
    return LookupBackward(
        graph.layer_of(operation),
        rows_of(graph.array(operation.grad), out.shape[1:]),
        rows_of(graph.array(operation.indices), ()),
        out,
        operation.padding_idx.value.data,
    )


def rows_of(array: Array, row: tuple[int, ...]) -> Array:
    """Merge all leading axes; the array was copied if strides do not allow it."""
    size = prod(array.shape) // max(prod(row), 1) if prod(row) else prod(array.shape[:-1])
    found = array.reshaped((size, *row))
    assert found is not None, "a copy was inserted before an array whose rows are not a view"
    return found


MATCHERS: dict[str, Matcher] = {
    EmbeddingOp.name: match_lookup,
    EmbeddingDenseBackwardOp.name: match_backward,
}
