"""Fully connected layers: matrix product, bias and activation, forward and backward.

What of a layer's operators does not fit is a product of its own (`products`).
"""

from dataclasses import dataclass, replace
from typing import Self

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.arithmetic import AddmmOp, MmOp, SumOp
from csrun.cirh.ops.base import BackwardOp, UnaryOp, ints
from csrun.cirh.types import shape_of, type_of
from csrun.compiler.accumulate import add_product, tile_of
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph, parameter_of, transposed
from csrun.compiler.kernels.activation import Activation, activation_of
from csrun.compiler.kernels.activation_code import CODES
from csrun.compiler.kernels.base import Kernel, Matcher, Name, Phase
from csrun.compiler.kernels.products import match_product


@dataclass(frozen=True)
class FcForward(Kernel):
    """product = x w + b; out = activation(product), over product where nobody else reads it.

    Shapes: x [B, I], w [I, O], b [O] -> product, out [B, O]
    """

    x: Array
    weight: Array
    bias: Array | None
    product: Array
    activation: Activation | None
    out: Array

    kind = "fc"

    @property
    def reads(self) -> tuple[Array, ...]:
        """The input, the weights."""
        return tuple(a for a in (self.x, self.weight, self.bias) if a is not None)

    @property
    def writes(self) -> tuple[Array, ...]:
        """The output, and the product if it is kept."""
        return (self.out,) if self.product == self.out else (self.product, self.out)

    @property
    def scratch(self) -> tuple[Array, ...]:
        return self.activation.scratch(self.out) if self.activation else ()

    @property
    def flops(self) -> int:
        """Two for each multiply-add, one for each bias, and the activation's."""
        (rows, inner), columns = self.x.shape, self.weight.shape[1]
        return rows * columns * (2 * inner + (self.bias is not None) + _flops(self.activation))

    def prepare(self, name: Name) -> list[str]:
        return self.activation.prepare(self.out) if self.activation else []

    def emit(self, name: Name) -> list[str]:
        """The product, the bias in place, the activation."""
        product = name(self.product)
        rows, inner = self.x.shape
        shapes = f"[{rows}, {inner}] x [{inner}, {self.weight.shape[1]}]"
        lines = [f"matmul({name(self.x)}, {name(self.weight)}, out={product})  # {shapes}"]
        if self.bias is not None:
            lines.append(f"add({product}, {name(self.bias)}, out={product})")
        if self.activation is not None:
            lines += self.activation.emit(name, self.product, self.out, self.scratch)
        return lines


def _flops(activation: Activation | None) -> int:
    return activation.code.flops if activation else 0


@dataclass(frozen=True)
class FcBackward(Kernel):
    """From the gradient of a layer's output to those of its kernel, its bias and its input.

    With `activation` the gradient is first brought back through it, in place, from what it saved.
    Without `weight` the layer's input needs no gradient. x and weight are transposed views. With
    `adds` the kernel's gradient is added to what is there.

    Shapes: grad [B, O], x [I, B], weight [O, I] -> kernel [I, O], bias [O], input [B, I]
    """

    grad: Array
    activation: Activation | None
    saved: Array | None
    x: Array | None
    kernel_gradient: Array | None
    bias_gradient: Array | None
    weight: Array | None
    input_gradient: Array | None
    adds: bool = False

    kind = "fc"
    phase = Phase.BACKWARD

    @property
    def reads(self) -> tuple[Array, ...]:
        """The output's gradient, the layer's input and kernel, and what the activation saved."""
        return tuple(a for a in (self.grad, self.x, self.saved, self.weight) if a is not None)

    @property
    def writes(self) -> tuple[Array, ...]:
        """The three gradients, as far as they are wanted."""
        wanted = (self.kernel_gradient, self.bias_gradient, self.input_gradient)
        return tuple(a for a in wanted if a is not None)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """The activation's, and the tile of a product that is added."""
        own = self.activation.scratch(self.grad) if self.activation else ()
        return own if self._tile is None else (*own, self._tile)

    @property
    def _tile(self) -> Array | None:
        if not self.adds or self.kernel_gradient is None:
            return None
        return tile_of(self.kernel_gradient, self.layer)

    def adding(self) -> Self:
        return replace(self, adds=True)

    @property
    def flops(self) -> int:
        """As forward, once for the kernel's gradient and once for the input's."""
        rows, columns = self.grad.shape
        inner = self.x.shape[0] if self.x is not None else 0
        products = (self.kernel_gradient is not None) + (self.input_gradient is not None)
        sums = (self.bias_gradient is not None) + _flops(self.activation)
        return rows * columns * (2 * inner * products + sums)

    def prepare(self, name: Name) -> list[str]:
        """Ones, by whose product with the gradient BLAS sums its rows; the activation's."""
        rows, dtype = self.grad.shape[0], self.grad.dtype
        own = self.activation.prepare(self.grad) if self.activation else []
        return [f"ones_{rows} = np.ones({rows}, '{dtype}')", *own]

    def emit(self, name: Name) -> list[str]:
        """The activation in place, two products and a sum."""
        grad, lines = name(self.grad), []
        if self.activation is not None and self.saved is not None:
            scratch = self.activation.scratch(self.grad)
            lines += self.activation.emit(name, self.grad, self.saved, scratch)
        if self.kernel_gradient is not None and self.x is not None:
            if self._tile is not None:
                lines += add_product(self.x, self.grad, self.kernel_gradient, self._tile, name)
            else:
                lines.append(f"matmul({name(self.x)}, {grad}, out={name(self.kernel_gradient)})")
        if self.bias_gradient is not None:
            ones = f"ones_{self.grad.shape[0]}"
            lines.append(f"dot({ones}, {grad}, out={name(self.bias_gradient)})")
        if self.input_gradient is not None and self.weight is not None:
            target = name(self.input_gradient)
            lines.append(f"matmul({grad}, {name(self.weight)}, out={target})")
        return lines


def match_forward(operation: Operation, graph: Graph) -> Kernel | None:
    """A product with a weight or its transpose, its bias, and the one activation that follows."""
    assert isinstance(operation, MmOp | AddmmOp)
    if parameter_of(operation.rhs) is None:
        return None
    bias = operation.bias if isinstance(operation, AddmmOp) else None
    if bias is not None and parameter_of(bias) is None:
        return None
    graph.take(operation)
    readers = graph.users(operation.out)
    following = [op for op in readers if isinstance(op, UnaryOp) and activation_of(op)]
    activation, out = None, operation.out
    if len(following) == 1:
        graph.take(following[0])
        activation, out = activation_of(following[0]), following[0].out
    return FcForward(
        graph.layer_of(operation),
        x=graph.array(operation.lhs),
        weight=graph.array(operation.rhs),
        bias=graph.array(bias) if bias is not None else None,
        product=graph.array(operation.out if len(readers) > 1 else out),
        activation=activation,
        out=graph.array(out),
    )


def match_backward(operation: Operation, graph: Graph) -> Kernel | None:
    """All that a layer does with one gradient, from whichever of its operators comes first."""
    activation = activation_of(operation) if isinstance(operation, BackwardOp) else None
    if activation is not None and isinstance(operation, BackwardOp):
        gradient: SSAValue = operation.out
        if not graph.may_change(operation.grad):
            return None
        source, saved = operation.grad, graph.array(operation.saved)
    else:
        gradient = source = _gradient_operand(operation)
        saved = None
    readers = graph.users(gradient)
    layer = graph.layer_of(readers[0] if activation else operation)
    kernel, bias, below = _consumers(gradient, layer, operation, graph)
    found = [op for op in (kernel, bias, below) if op is not None]
    if len(found) < len(readers) and (activation or operation not in found):
        return None  # others read the gradient under a name of its own, or nobody here does
    graph.take(*found, *([operation] if activation else []))
    return FcBackward(
        layer,
        grad=graph.array(source),
        activation=activation,
        saved=saved,
        x=graph.array(kernel.lhs) if kernel is not None else None,
        kernel_gradient=graph.array(kernel.out) if kernel is not None else None,
        bias_gradient=_row(graph.array(bias.out)) if bias is not None else None,
        weight=graph.array(below.rhs) if below is not None else None,
        input_gradient=graph.array(below.out) if below is not None else None,
    )


def _gradient_operand(operation: Operation) -> SSAValue:
    """The gradient in one of a layer's backward operators."""
    if isinstance(operation, MmOp) and transposed(operation.lhs) is not None:
        return operation.rhs
    return operation.operands[0]


def _consumers(
    gradient: SSAValue, layer: str, root: Operation, graph: Graph
) -> tuple[MmOp | None, SumOp | None, MmOp | None]:
    """The products and the sum of one layer that read a gradient: for kernel, bias and input.

    What else they read is there where `root` stands.
    """
    kernel: MmOp | None = None
    bias: SumOp | None = None
    below: MmOp | None = None
    for user in graph.users(gradient):
        if graph.layer_of(user) != layer:
            continue
        if isinstance(user, MmOp) and user.rhs is gradient and graph.precedes(user.lhs, root):
            kernel = user
        elif isinstance(user, MmOp) and user.lhs is gradient and parameter_of(user.rhs):
            below = user
        elif isinstance(user, SumOp) and _is_of_bias(user, graph):
            bias = user
    return kernel, bias, below


def _is_of_bias(total: SumOp, graph: Graph) -> bool:
    """Whether a sum over rows makes a parameter's gradient."""
    dims, rank = ints(total.properties, "dims"), len(shape_of(type_of(total.x)))
    if (dims, rank) != ((0,), 2) or graph.trains(total.out) is None:
        return False
    return graph.array(total.out).is_contiguous


def _row(array: Array) -> Array | None:
    """A sum over rows without the axis that it may have kept."""
    return array.reshaped(array.shape[-1:])


def _match_product(operation: Operation, graph: Graph) -> Kernel | None:
    """A product before the loss is a layer's, one after it the backward pass's; or on its own."""
    if graph.phase_of(operation) is Phase.FORWARD:
        return match_forward(operation, graph) or match_product(operation, graph)
    return match_backward(operation, graph) or match_product(operation, graph)


MATCHERS: dict[str, Matcher] = {
    **{f"cirh.{kind}": match_backward for kind in CODES if "_backward" in kind},
    AddmmOp.name: _match_product,
    MmOp.name: _match_product,
    SumOp.name: match_backward,
}
