"""Machine code of softmax and log-softmax along rows, forward and backward, from LAIR formulas."""

from csrun.compiler.emit.llvm.library.formulas import code_of_formula
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.kernels.softmax import Softmax
from csrun.compiler.lair.formula import Formula, Values


def softmax_code(kernel: Softmax, name: str) -> KernelCode | None:
    """Return machine code of a softmax; None if an axis follows the one of the values."""
    *shape, after = kernel.out.shape
    if after > 1:
        return None
    keys = ("grad", "y") if len(kernel.operands) > 1 else ("x",)
    reads = dict(zip(keys, kernel.operands, strict=True))
    shapes = dict.fromkeys((*keys, "out"), tuple(shape))
    return code_of_formula(name, reads, {"out": kernel.out}, shapes, FORMULAS[kernel.function])


def softmax(old: Values) -> Values:
    """Return exp(x - max) / sum(exp(x - max))."""
    powers = (old["x"] - old["x"].largest()).exp()
    return {"out": powers * powers.total().reciprocal()}


def log_softmax(old: Values) -> Values:
    """Return (x - max) - log(sum(exp(x - max)))."""
    x = old["x"]
    top = x.largest()
    return {"out": x - top - (x - top).exp().total().log()}


def softmax_backward(old: Values) -> Values:
    """Return y (grad - sum(grad y))."""
    grad, y = old["grad"], old["y"]
    return {"out": (grad - (grad * y).total()) * y}


def log_softmax_backward(old: Values) -> Values:
    """Return grad - exp(y) sum(grad)."""
    grad = old["grad"]
    return {"out": grad - old["y"].exp() * grad.total()}


FORMULAS: dict[str, Formula] = {
    "softmax": softmax,
    "softmax_backward": softmax_backward,
    "log_softmax": log_softmax,
    "log_softmax_backward": log_softmax_backward,
}
