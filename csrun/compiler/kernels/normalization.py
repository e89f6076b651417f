"""Layer norm and RMS norm: one kernel per operator."""

from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import Operation

from csrun.cirh.ops.normalization import (
    FusedRmsNormBackwardOp,
    FusedRmsNormOp,
    NativeLayerNormBackwardOp,
    NativeLayerNormOp,
)
from csrun.cirh.types import shape_of, type_of
from csrun.compiler.graph.array import Array, Shape
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import FunctionKernel, Kernel, Matcher, Name, Phase, bound_struct
from csrun.executable import nbytes_of

NORMS = (NativeLayerNormOp, NativeLayerNormBackwardOp, FusedRmsNormOp, FusedRmsNormBackwardOp)
#: Of one array: the calls of a tile take 10 µs, little compared with its loops. With half as much
#: [512, 768] takes 7 % longer, and arrays far larger than a core's L2 are not faster.
TILE_BYTES = 768 << 10


@dataclass(frozen=True)
class NormFunction:
    """Function of `csrun.kernels.normalization`, its struct of arrays, and the results in it."""

    name: str
    struct: str
    results: tuple[str, ...]
    adds_by_ones: bool


@dataclass(frozen=True)
class Norm(FunctionKernel):
    """One of the functions of `csrun.kernels.normalization`, its operands and results.

    Shapes: rows [N, D], weights [D], statistics [N]
    """

    function: NormFunction
    eps: float | None
    phase: Phase

    kind = "norm"

    @property
    def flops(self) -> int:
        """Operations: per value about as many as passes over it."""
        return prod(self.operands[0].shape) * (14 if self.phase is Phase.BACKWARD else 8)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return a tile of normalized rows; in the backward pass one more, row and column sums."""
        rows, size = self._rows, self.operands[0].shape[1]
        tile = self.scratch_array("tile", (rows, size))
        if self.phase is Phase.FORWARD:
            return (tile,)
        sums = [self.scratch_array(f"sums_{n}", (rows,)) for n in range(len(self.results) - 1)]
        return (
            tile,
            self.scratch_array("products", (rows, size)),
            *sums,
            self.scratch_array("part", (size,)),
        )

    @property
    def _rows(self) -> int:
        """Number of rows of a tile."""
        rows, size = self.operands[0].shape
        row_bytes = nbytes_of((size,), self.operands[0].dtype)
        return max(1, min(rows, TILE_BYTES // max(row_bytes, 1)))

    @property
    def _ones(self) -> tuple[str, int] | None:
        """Return the variable of a vector of ones, with which a layer norm sums; RMS norm needs
        none.
        """
        if not self.function.adds_by_ones:
            return None
        backward = self.phase is Phase.BACKWARD
        count = self._rows if backward else self.operands[0].shape[1]
        return f"ones_{count}", count

    def prepare(self, name: Name) -> list[str]:
        """Bind the struct of results and scratch."""
        lines = ["from csrun.kernels import normalization"]
        fields = dict(zip(self.function.results, map(name, self.results), strict=True))
        if self._ones is not None:
            fields["ones"], count = self._ones
            lines.append(f"{fields['ones']} = np.ones({count}, '{self.results[0].dtype}')")
        tile, *own = map(name, self.scratch)
        if self.phase is Phase.FORWARD:
            fields["tile"] = tile
        else:
            products, *sums, part = own
            fields["tiles"] = f"({tile}, {products})"
            fields["sums"] = f"({', '.join(sums)})"
            fields["part"] = part
        return [*lines, bound_struct(self._struct(name), self.function.struct, fields)]

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        arguments = [*map(name, self.operands), self._struct(name)]
        arguments += [] if self.eps is None else [repr(self.eps)]
        return [f"normalization.{self.function.name}({', '.join(arguments)})"]

    def _struct(self, name: Name) -> str:
        what = "gradients" if self.phase is Phase.BACKWARD else "results"
        return f"{name(self.results[0])}_{what}"


FORWARD: dict[str, NormFunction] = {
    NativeLayerNormOp.name: NormFunction(
        "layer_norm", "normalization.LayerNormResults", ("out", "mean", "rstd"), True
    ),
    FusedRmsNormOp.name: NormFunction(
        "rms_norm", "normalization.RmsNormResults", ("out", "rrms"), False
    ),
}
BACKWARD: dict[str, NormFunction] = {
    NativeLayerNormBackwardOp.name: NormFunction(
        "layer_norm_backward",
        "normalization.LayerNormGradients",
        ("x", "weight", "bias"),
        True,
    ),
    FusedRmsNormBackwardOp.name: NormFunction(
        "rms_norm_backward", "normalization.RmsNormGradients", ("x", "weight"), False
    ),
}


def match_norm(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator, over rows of all normalized axes."""
    graph.take(operation)
    backward = operation.name in BACKWARD
    assert isinstance(operation, NORMS)
    definition, weight = operation.get_irdl_definition(), type_of(operation.weight)
    names = [name for name, _ in (*definition.operands, *definition.results)]
    values = (*operation.operands, *operation.results)
    found = [_flat(n, graph.array(v), shape_of(weight)) for n, v in zip(names, values, strict=True)]
    count, eps = len(operation.operands), operation.properties.get("eps")
    return Norm(
        graph.layer_of(operation),
        tuple(found[:count]),
        tuple(found[count:]),
        (BACKWARD if backward else FORWARD)[operation.name],
        eps.value.data if isinstance(eps, FloatAttr) else None,
        Phase.BACKWARD if backward else Phase.FORWARD,
    )


def _flat(name: str, array: Array, weight: Shape) -> Array:
    """Return a flat view by name: rows, a weight, or a number for each row."""
    rows, size = prod(array.shape[: -len(weight)]), prod(weight)
    if name in ("x", "grad", "out", "x_gradient"):
        shape: Shape = (rows, size)
    else:
        shape = (size,) if name.startswith(("weight", "bias")) else (rows,)
    found = array.reshaped(shape)
    assert found is not None, "a copy was inserted before an array whose rows are not a view"
    return found


MATCHERS: dict[str, Matcher] = dict.fromkeys((*FORWARD, *BACKWARD), match_norm)
