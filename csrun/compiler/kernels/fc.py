"""Fully connected layers: matrix product, bias and activation, forward and backward."""

from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.activation import ReluOp, ThresholdBackwardOp
from csrun.cirh.ops.matrix import AddmmOp, MmOp
from csrun.cirh.ops.reduction import SumOp
from csrun.cirh.ops.shape import TransposeOp
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph, parameter_of, transposed
from csrun.compiler.kernels.base import Kernel, Matcher, Name, Phase


@dataclass(frozen=True)
class FcForward(Kernel):
    """out = activation(x w + b).

    Shapes: x [B, I], w [I, O], b [O] -> out [B, O]
    """

    x: Array
    weight: Array
    bias: Array | None
    relu: bool
    out: Array

    kind = "fc"

    @property
    def reads(self) -> tuple[Array, ...]:
        """The input."""
        return (self.x,)

    @property
    def writes(self) -> tuple[Array, ...]:
        """The output."""
        return (self.out,)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Kernel and bias."""
        return tuple(a.name for a in (self.weight, self.bias) if a is not None)

    @property
    def flops(self) -> int:
        """Two for each multiply-add, one for each bias and each activation."""
        (rows, inner), columns = self.x.shape, self.weight.shape[1]
        return rows * columns * (2 * inner + (self.bias is not None) + self.relu)

    def prepare(self, name: Name) -> list[str]:
        """Zeros for the ReLU: NumPy compares two arrays several times faster than one and a 0."""
        if not self.relu:
            return []
        return [f"{_zeros_name(self.out)} = np.zeros({_zeros_shape(self.out)}, '{self.out.dtype}')"]

    def emit(self, name: Name) -> list[str]:
        """Three calls at the most, all in place."""
        out = name(self.out)
        rows, inner = self.x.shape
        shapes = f"[{rows}, {inner}] x [{inner}, {self.weight.shape[1]}]"
        lines = [f"matmul({name(self.x)}, {name(self.weight)}, out={out})  # {shapes}"]
        if self.bias is not None:
            lines.append(f"add({out}, {name(self.bias)}, out={out})")
        if self.relu:
            lines.append(f"maximum({out}, {_zeros_name(self.out)}, out={out})")
        return lines


LARGEST_ZEROS = 16 * 1024  # elements; for more, one row of zeros is broadcast


def _zeros_shape(out: Array) -> tuple[int, ...]:
    rows, columns = out.shape
    return (rows, columns) if rows * columns <= LARGEST_ZEROS else (columns,)


def _zeros_name(out: Array) -> str:
    return "zeros_" + "_".join(map(str, _zeros_shape(out)))


@dataclass(frozen=True)
class FcBackward(Kernel):
    """From the gradient of a layer's output to those of its kernel, its bias and its input.

    With `relu_output` the gradient is first zeroed, in place, where the layer's output is not
    positive. Without `weight` the layer's input needs no gradient.

    Shapes: grad [B, O], x [B, I] -> kernel [I, O], bias [O], input [B, I]
    """

    grad: Array
    relu_output: Array | None
    x: Array | None
    kernel_gradient: Array | None
    bias_gradient: Array | None
    weight: Array | None
    input_gradient: Array | None

    kind = "fc"
    phase = Phase.BACKWARD

    @property
    def reads(self) -> tuple[Array, ...]:
        """The output's gradient, the layer's input, and its output for the activation."""
        return tuple(a for a in (self.grad, self.x, self.relu_output) if a is not None)

    @property
    def writes(self) -> tuple[Array, ...]:
        """The three gradients, as far as they are wanted."""
        wanted = (self.kernel_gradient, self.bias_gradient, self.input_gradient)
        return tuple(a for a in wanted if a is not None)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """The activation's mask."""
        if self.relu_output is None:
            return ()
        return (Array(f"{self.layer}/mask", self.grad.shape, "bool"),)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The kernel, for the input's gradient."""
        return (self.weight.name,) if self.weight is not None else ()

    @property
    def flops(self) -> int:
        """As forward, once for the kernel's gradient and once for the input's."""
        rows, columns = self.grad.shape
        inner = self.x.shape[1] if self.x is not None else 0
        products = (self.kernel_gradient is not None) + (self.input_gradient is not None)
        sums = (self.bias_gradient is not None) + (self.relu_output is not None)
        return rows * columns * (2 * inner * products + sums)

    def prepare(self, name: Name) -> list[str]:
        """Ones, by whose product with the gradient BLAS sums its rows, and a zero."""
        rows, dtype = self.grad.shape[0], self.grad.dtype
        return [f"ones_{rows} = np.ones({rows}, '{dtype}')", f"zero = np.zeros((), '{dtype}')"]

    def emit(self, name: Name) -> list[str]:
        """Five calls at the most."""
        grad, lines = name(self.grad), []
        if self.relu_output is not None:
            mask = name(self.scratch[0])
            lines.append(f"greater({name(self.relu_output)}, zero, out={mask})")
            lines.append(f"multiply({grad}, {mask}, out={grad})")
        if self.kernel_gradient is not None and self.x is not None:
            target = name(self.kernel_gradient)
            lines.append(f"matmul({name(self.x)}.T, {grad}, out={target})")
        if self.bias_gradient is not None:
            ones = f"ones_{self.grad.shape[0]}"
            lines.append(f"dot({ones}, {grad}, out={name(self.bias_gradient)})")
        if self.input_gradient is not None and self.weight is not None:
            target = name(self.input_gradient)
            lines.append(f"matmul({grad}, {name(self.weight)}.T, out={target})")
        return lines


def match_forward(operation: Operation, graph: Graph) -> Kernel | None:
    """A product with a parameter, its bias, and the ReLU that alone reads it."""
    assert isinstance(operation, MmOp | AddmmOp)
    weight = parameter_of(operation.rhs)
    if weight is None:
        return None
    bias = operation.bias if isinstance(operation, AddmmOp) else None
    if bias is not None and parameter_of(bias) is None:
        return None
    graph.take(operation)
    out = operation.out
    activation = graph.only_user(out)
    relu = isinstance(activation, ReluOp)
    if isinstance(activation, ReluOp):
        graph.take(activation)
        out = activation.out
    return FcForward(
        graph.layer_of(operation),
        x=graph.array(operation.lhs),
        weight=graph.array(weight.out),
        bias=graph.array(bias) if bias is not None else None,
        relu=relu,
        out=graph.array(out),
    )


def match_backward(operation: Operation, graph: Graph) -> Kernel | None:
    """All that a layer does with one gradient, from whichever of its operators comes first."""
    if isinstance(operation, ThresholdBackwardOp):
        gradient: SSAValue = operation.out
        relu_output: SSAValue | None = operation.saved
        if operation.threshold.value.data != 0 or len(graph.users(operation.grad)) > 1:
            return None
        graph.take(operation)
        source = operation.grad
    else:
        gradient = _gradient_operand(operation)
        source, relu_output = gradient, None
    kernel, bias, below = _consumers(gradient, graph)
    found = [op for op in (kernel, bias, below) if op is not None]
    if not found:
        return None
    graph.take(*found)
    x = transposed(kernel.lhs) if kernel is not None else None
    weight = transposed(below.rhs) if below is not None else None
    layer = graph.layer_of(found[0])
    return FcBackward(
        layer,
        grad=graph.array(source),
        relu_output=graph.array(relu_output) if relu_output is not None else None,
        x=graph.array(x) if x is not None else None,
        kernel_gradient=graph.array(kernel.out) if kernel is not None else None,
        bias_gradient=graph.array(bias.out) if bias is not None else None,
        weight=graph.array(weight) if weight is not None else None,
        input_gradient=graph.array(below.out) if below is not None else None,
    )


def _gradient_operand(operation: Operation) -> SSAValue:
    """The gradient in one of a layer's backward operators."""
    if isinstance(operation, MmOp) and transposed(operation.lhs) is not None:
        return operation.rhs
    return operation.operands[0]


def _consumers(gradient: SSAValue, graph: Graph) -> tuple[MmOp | None, SumOp | None, MmOp | None]:
    """The products and the sum that read a gradient: for kernel, bias and input."""
    kernel: MmOp | None = None
    bias: SumOp | None = None
    below: MmOp | None = None
    for user in graph.users(gradient):
        if isinstance(user, MmOp) and user.rhs is gradient and transposed(user.lhs) is not None:
            kernel = user
        elif isinstance(user, MmOp) and user.lhs is gradient and _is_weight(user.rhs):
            below = user
        elif isinstance(user, SumOp) and graph.is_gradient(user.out):
            bias = user
    return kernel, bias, below


def _is_weight(value: SSAValue) -> bool:
    source = transposed(value)
    return source is not None and parameter_of(source) is not None


def _match_product(operation: Operation, graph: Graph) -> Kernel | None:
    return match_forward(operation, graph) or match_backward(operation, graph)


def _alias(operation: Operation, graph: Graph) -> Kernel | None:
    """A transpose is read as such by BLAS and needs no kernel."""
    assert isinstance(operation, TransposeOp)
    graph.take(operation)
    return None


MATCHERS: dict[str, Matcher] = {
    AddmmOp.name: match_forward,
    MmOp.name: _match_product,
    ThresholdBackwardOp.name: match_backward,
    SumOp.name: match_backward,
    TransposeOp.name: _alias,
}
