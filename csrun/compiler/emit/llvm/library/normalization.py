"""Machine code of layer norm and RMS norm, forward and backward, from LAIR formulas.

Each row is read two or three times, from the cache after the first pass.
"""

from csrun.compiler.emit.llvm.library.formulas import code_of_formula
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels.normalization import Norm
from csrun.compiler.lair.formula import FormulaValue, Values

OPERANDS = {
    "layer_norm": ("x", "weight", "bias"),
    "rms_norm": ("x", "weight"),
    "layer_norm_backward": ("grad", "x", "mean", "rstd", "weight"),
    "rms_norm_backward": ("grad", "x", "rrms", "weight"),
}


def norm_code(kernel: Norm, name: str) -> KernelCode | None:
    """Return machine code of a norm; a gradient sums columns in partial sums of fixed rows."""
    function = kernel.function
    reads = dict(zip(OPERANDS[function.name], kernel.operands, strict=True))
    results = function.results
    if kernel.phase is Phase.BACKWARD:
        results = tuple(f"{result}_gradient" for result in results)
    writes = dict(zip(results, kernel.results, strict=True))
    rows, size = kernel.operands[0].shape
    shapes = dict.fromkeys(("x", "grad", "out", "x_gradient"), (rows, size))
    shapes |= dict.fromkeys(("mean", "rstd", "rrms"), (rows, 1))
    shapes |= dict.fromkeys(("weight", "bias", "weight_gradient", "bias_gradient"), (1, size))
    formula = getattr(_Formulas(size, kernel.eps or 0.0), function.name)
    return code_of_formula(name, reads, writes, shapes, formula)


class _Formulas:
    """Formulas by the names of `csrun.kernels.normalization`'s functions.

    Values that need few operators are recomputed in each pass, which is cheaper than storing them.

    Shapes: rows [N, D], weights [1, D], statistics [N, 1]
    """

    def __init__(self, size: int, eps: float) -> None:
        self._size = size
        self._eps = eps

    def layer_norm(self, old: Values) -> Values:
        """Return `out`, `mean` and `rstd`."""
        x = old["x"]
        mean = x.total() / self._size
        rstd = self._inverse_root(x - mean)
        out = (x - mean) * rstd * old["weight"] + old["bias"]
        return {"mean": mean, "rstd": rstd, "out": out}

    def rms_norm(self, old: Values) -> Values:
        """Return `out` and `rrms`."""
        rrms = self._inverse_root(old["x"])
        return {"rrms": rrms, "out": old["x"] * rrms * old["weight"]}

    def layer_norm_backward(self, old: Values) -> Values:
        """Return the gradients of x, weight and bias."""
        grad, x, mean, rstd, weight = (old[key] for key in OPERANDS["layer_norm_backward"])
        normal = (x - mean) * rstd
        weighted = grad * weight
        average = weighted.total() / self._size
        slope = (weighted * normal).total() / self._size
        return {
            "weight_gradient": (grad * normal).over_rows(),
            "bias_gradient": grad.over_rows(),
            "x_gradient": (grad * weight - average - (x - mean) * rstd * slope) * rstd,
        }

    def rms_norm_backward(self, old: Values) -> Values:
        """Return the gradients of x and weight."""
        grad, x, rrms, weight = (old[key] for key in OPERANDS["rms_norm_backward"])
        normal = x * rrms
        slope = (grad * weight * normal).total() / self._size
        return {
            "weight_gradient": (grad * normal).over_rows(),
            "x_gradient": (grad * weight - x * rrms * slope) * rrms,
        }

    def _inverse_root(self, x: FormulaValue) -> FormulaValue:
        """Return 1 / sqrt(mean of squares + eps) of each row."""
        return ((x * x).total() / self._size + self._eps).root().reciprocal()
