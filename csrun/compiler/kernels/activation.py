"""Activation functions: how a layer's kernel takes them in, and kernels for those on their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import FloatAttr, StringAttr
from xdsl.ir import Operation

from csrun.cirh.ops.base import BackwardOp, UnaryOp
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph
from csrun.compiler.kernels.activation_code import CODES, Code
from csrun.compiler.kernels.base import Kernel, Matcher, Name, Phase, UnaryKernel


@dataclass(frozen=True)
class Activation:
    """One activation operator of a model, matched; `options` are its numbers by name."""

    kind: str
    options: tuple[tuple[str, float], ...]

    @property
    def code(self) -> Code:
        """How it is computed."""
        return CODES[self.kind]

    def scratch(self, like: Array) -> tuple[Array, ...]:
        """Its scratch arrays, named and shaped after the one array that its lines change."""
        kinds = {"f": like.dtype, "b": "bool"}
        return tuple(
            Array(f"{like.name}/{self.kind}_{number}", like.shape, kinds[kind])
            for number, kind in enumerate(self.code.scratch)
        )

    def prepare(self, array: Array) -> list[str]:
        """Lines that bind once what the text needs: zeros, and functions that NumPy lacks."""
        lines = ["from csrun.executable import special"] if self.code.needs_special else []
        if self.kind == "relu":
            zeros = f"np.zeros({_zeros_shape(array)}, '{array.dtype}')"
            return [*lines, f"{zeros_name(array)} = {zeros}"]
        return [*lines, f"zero = np.zeros((), '{array.dtype}')"]

    def emit(self, name: Name, operand: Array, other: Array, scratch: Sequence[Array]) -> list[str]:
        """The lines: forward from operand to other, backward over operand from the saved other."""
        names = [name(array) for array in (operand, other, *scratch)]
        if self.kind == "relu":
            return [f"maximum({names[0]}, {zeros_name(operand)}, out={names[1]})"]
        return self.code.text(dict(self.options), *names)


LARGEST_ZEROS = 16 * 1024  # elements; for more, one row of zeros is broadcast


def zeros_name(array: Array) -> str:
    """The variable of the zeros that an array is compared with.

    NumPy compares two arrays several times faster than one and a 0.
    """
    return "zeros_" + "_".join(map(str, _zeros_shape(array)))


def _zeros_shape(array: Array) -> tuple[int, ...]:
    return array.shape if prod(array.shape) <= LARGEST_ZEROS else array.shape[-1:]


def activation_of(operation: Operation) -> Activation | None:
    """The activation, forward or backward, that an operator is."""
    kind = operation.name.removeprefix("cirh.")
    if operation.properties.get("approximate") == StringAttr("tanh"):
        kind += "_tanh"
    if kind not in CODES:
        return None
    numbers = {n: v.value.data for n, v in operation.properties.items() if isinstance(v, FloatAttr)}
    return Activation(kind, tuple(sorted(numbers.items())))


@dataclass(frozen=True)
class ActivationForward(UnaryKernel):
    """out = activation(x).

    Shapes: x, out of one shape
    """

    activation: Activation

    kind = "activation"

    @property
    def scratch(self) -> tuple[Array, ...]:
        """The activation's."""
        return self.activation.scratch(self.out)

    @property
    def flops(self) -> int:
        """So many for each value."""
        return self.activation.code.flops * prod(self.x.shape)

    def prepare(self, name: Name) -> list[str]:
        """The activation's."""
        return self.activation.prepare(self.x)

    def emit(self, name: Name) -> list[str]:
        """The activation's."""
        return self.activation.emit(name, self.x, self.out, self.scratch)


@dataclass(frozen=True)
class ActivationBackward(Kernel):
    """out = grad times the activation's slope, which follows from its saved input or output.

    Shapes: grad, saved, out of one shape
    """

    grad: Array
    activation: Activation
    saved: Array
    out: Array

    kind = "activation"
    phase = Phase.BACKWARD

    @property
    def reads(self) -> tuple[Array, ...]:
        """The gradient, and what was saved."""
        return self.grad, self.saved

    @property
    def writes(self) -> tuple[Array, ...]:
        """The gradient below."""
        return (self.out,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """The activation's."""
        return self.activation.scratch(self.out)

    @property
    def flops(self) -> int:
        """So many for each value."""
        return self.activation.code.flops * prod(self.grad.shape)

    def prepare(self, name: Name) -> list[str]:
        """The activation's."""
        return self.activation.prepare(self.grad)

    def emit(self, name: Name) -> list[str]:
        """A copy, which the activation's lines then change: others may read the gradient."""
        copy = f"copyto({name(self.out)}, {name(self.grad)})"
        return [copy, *self.activation.emit(name, self.out, self.saved, self.scratch)]


def match_forward(operation: Operation, graph: Graph) -> Kernel | None:
    """An activation that no layer has taken in."""
    activation = activation_of(operation)
    if activation is None or not isinstance(operation, UnaryOp):
        return None
    graph.take(operation)
    layer = graph.layer_of(operation)
    return ActivationForward(
        layer, graph.array(operation.x), graph.array(operation.out), activation
    )


def match_backward(operation: Operation, graph: Graph) -> Kernel | None:
    """The way back through an activation that no layer has taken in."""
    activation = activation_of(operation)
    if activation is None or not isinstance(operation, BackwardOp):
        return None
    graph.take(operation)
    return ActivationBackward(
        graph.layer_of(operation),
        graph.array(operation.grad),
        activation,
        graph.array(operation.saved),
        graph.array(operation.out),
    )


MATCHERS: dict[str, Matcher] = {
    f"cirh.{kind}": match_backward if "_backward" in kind else match_forward for kind in CODES
}
