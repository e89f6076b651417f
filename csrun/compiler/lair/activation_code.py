"""Table of the texts of each activation function over arrays, forward and backward.

Forward texts may write over their first operand; backward texts change the gradient in place.
Scratch arrays are of the operand's shape: `f` of its element type, `b` of booleans, `z` of zeros,
which NumPy takes maxima with several times faster than with a number. `zero` is bound to a 0
of the element type: NumPy compares with it faster than with Python's. `bits` is the type of
integers of its size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, pi, sqrt

INNER, CUBE = sqrt(2 / pi), 0.044715

Options = Mapping[str, float]
Text = Callable[..., list[str]]  # (options, *operands, out unless it is the gradient, *scratch)


@dataclass(frozen=True)
class Code:
    """The text of one operator, its scratch arrays, and what it costs for each value.

    needs_special: the text calls functions of csrun.kernels.special.
    """

    text: Text
    scratch: str = ""
    flops: int = 1
    needs_special: bool = False


def _relu(o: Options, x: str, y: str, z: str) -> list[str]:
    return [f"maximum({x}, {z}, out={y})"]


def _zeroed(g: str, b: str) -> list[str]:
    """g, and 0 where b is true, also of an infinite or undefined g: a product of its bits.

    NumPy's masked copies take 25 times as long, for the processor guesses each of their branches.
    """
    return [
        f"logical_not({b}, out={b})",
        f"multiply({g}.view(bits), {b}, out={g}.view(bits))",
    ]


def _threshold_backward(o: Options, g: str, y: str, b: str) -> list[str]:
    bound = repr(o["threshold"]) if o["threshold"] else "zero"
    return [f"less_equal({y}, {bound}, out={b})", *_zeroed(g, b)]


def _sigmoid(o: Options, x: str, y: str) -> list[str]:
    return [f"special.logistic({x}, {y})"]


def _sigmoid_backward(o: Options, g: str, y: str, f: str) -> list[str]:
    return [
        f"multiply({g}, {y}, out={g})",
        f"subtract(1, {y}, out={f})",
        f"multiply({g}, {f}, out={g})",
    ]


def _tanh(o: Options, x: str, y: str) -> list[str]:
    return [f"tanh({x}, out={y})"]


def _tanh_backward(o: Options, g: str, y: str, f: str) -> list[str]:
    return [
        f"multiply({y}, {y}, out={f})",
        f"subtract(1, {f}, out={f})",
        f"multiply({g}, {f}, out={g})",
    ]


def _silu(o: Options, x: str, y: str, f: str) -> list[str]:
    return [f"special.logistic({x}, {f})", f"multiply({x}, {f}, out={y})"]


def _silu_backward(o: Options, g: str, x: str, f: str, h: str) -> list[str]:
    return [
        f"special.logistic({x}, {f})",
        f"subtract(1, {f}, out={h})",
        f"multiply({h}, {x}, out={h})",
        f"add({h}, 1, out={h})",
        f"multiply({f}, {h}, out={f})",
        f"multiply({g}, {f}, out={g})",
    ]


def _softplus(o: Options, x: str, y: str, f: str) -> list[str]:
    """max(x, 0) + log(1 + exp(-|x|))."""
    return [
        f"absolute({x}, out={f})",
        f"negative({f}, out={f})",
        f"exp({f}, out={f})",
        f"log1p({f}, out={f})",
        f"maximum({x}, zero, out={y})",
        f"add({y}, {f}, out={y})",
    ]


def _softplus_backward(o: Options, g: str, x: str, f: str) -> list[str]:
    return [f"special.logistic({x}, {f})", f"multiply({g}, {f}, out={g})"]


def _gelu(o: Options, x: str, y: str, f: str, h: str) -> list[str]:
    return [f"special.normal_cdf({x}, {f}, {f}, {h})", f"multiply({x}, {f}, out={y})"]


def _gelu_backward(o: Options, g: str, x: str, f: str, h: str) -> list[str]:
    """g (P(N(0, 1) < x) + x exp(-x x / 2) / sqrt(2 pi))."""
    return [
        f"special.normal_cdf({x}, {f}, {f}, {h})",
        f"multiply({x}, {x}, out={h})",
        f"multiply({h}, -0.5, out={h})",
        f"exp({h}, out={h})",
        f"multiply({h}, {1 / sqrt(2 * pi)!r}, out={h})",
        f"multiply({h}, {x}, out={h})",
        f"add({f}, {h}, out={f})",
        f"multiply({g}, {f}, out={g})",
    ]


def _gelu_cdf(o: Options, x: str, y: str, f: str, h: str) -> list[str]:
    return [f"special.normal_cdf({x}, {y}, {f}, {h})"]


def _gelu_slope(o: Options, x: str, cdf: str, gelu: str, y: str, f: str) -> list[str]:
    """cdf + x exp(-x x / 2) / sqrt(2 pi)."""
    return [
        f"multiply({x}, {x}, out={f})",
        f"multiply({f}, -0.5, out={f})",
        f"exp({f}, out={f})",
        f"multiply({f}, {1 / sqrt(2 * pi)!r}, out={f})",
        f"multiply({f}, {x}, out={f})",
        f"add({f}, {cdf}, out={y})",
    ]


def _gelu_tanh(o: Options, x: str, y: str, f: str) -> list[str]:
    return [*_gelu_tanh_cdf(o, x, f, f), f"multiply({x}, {f}, out={y})"]


def _gelu_tanh_cdf(o: Options, x: str, y: str, f: str) -> list[str]:
    """1 / 2 + 1 / 2 tanh(...)."""
    return [
        *_gelu_tanh_inner(x, f, f),
        f"add({f}, 1, out={f})",
        f"multiply({f}, 0.5, out={y})",
    ]


def _gelu_tanh_slope(o: Options, x: str, cdf: str, gelu: str, y: str, f: str) -> list[str]:
    """cdf (1 + (x - x cdf) 2 slope of the inner part)."""
    return [
        f"multiply({x}, {x}, out={f})",
        f"multiply({f}, {6 * INNER * CUBE!r}, out={f})",
        f"add({f}, {2 * INNER!r}, out={f})",
        f"subtract({x}, {gelu}, out={y})",
        f"multiply({y}, {f}, out={y})",
        f"add({y}, 1, out={y})",
        f"multiply({y}, {cdf}, out={y})",
    ]


def _gelu_tanh_inner(x: str, f: str, square: str) -> list[str]:
    return [
        f"multiply({x}, {x}, out={square})",
        f"multiply({square}, {INNER * CUBE!r}, out={f})",
        f"add({f}, {INNER!r}, out={f})",
        f"multiply({f}, {x}, out={f})",
        f"tanh({f}, out={f})",
    ]


def _gelu_tanh_backward(o: Options, g: str, x: str, f: str, h: str, k: str) -> list[str]:
    """g (1 + tanh) (1 / 2 + (1 - tanh) x / 2 slope of the inner part)."""
    return [
        *_gelu_tanh_inner(x, f, k),
        f"multiply({k}, {1.5 * INNER * CUBE!r}, out={k})",
        f"add({k}, {INNER / 2!r}, out={k})",
        f"multiply({k}, {x}, out={k})",
        f"subtract(1, {f}, out={h})",
        f"multiply({h}, {k}, out={h})",
        f"add({h}, 0.5, out={h})",
        f"add({f}, 1, out={f})",
        f"multiply({h}, {f}, out={h})",
        f"multiply({g}, {h}, out={g})",
    ]


def _elu(o: Options, x: str, y: str, f: str) -> list[str]:
    return [
        f"minimum({x}, zero, out={f})",
        f"expm1({f}, out={f})",
        f"multiply({f}, {o['alpha']!r}, out={f})",
        f"maximum({x}, zero, out={y})",
        f"add({y}, {f}, out={y})",
        f"multiply({y}, {o['scale']!r}, out={y})",
    ]


def _elu_backward(o: Options, g: str, y: str, f: str, b: str) -> list[str]:
    return [
        f"add({y}, {o['alpha'] * o['scale']!r}, out={f})",
        f"greater({y}, zero, out={b})",
        f"copyto({f}, {o['scale']!r}, where={b})",
        f"multiply({g}, {f}, out={g})",
    ]


def _leaky_relu(o: Options, x: str, y: str, f: str) -> list[str]:
    if o["negative_slope"]:
        return [
            f"multiply({x}, {o['negative_slope']!r}, out={f})",
            f"maximum({x}, {f}, out={y})",
        ]
    return [  # 0 times infinity would be the larger one above
        f"minimum({x}, zero, out={f})",
        f"multiply({f}, 0, out={f})",
        f"maximum({x}, zero, out={y})",
        f"add({y}, {f}, out={y})",
    ]


def _leaky_relu_backward(o: Options, g: str, y: str, f: str, b: str) -> list[str]:
    slope = o["negative_slope"]
    return [
        f"greater({y}, zero, out={b})",
        f"{f}.fill({slope!r})",
        f"copyto({f}, 1, where={b})",
        f"multiply({g}, {f}, out={g})",
    ]


def _clamp(o: Options, x: str, y: str) -> list[str]:
    return [
        f"maximum({x}, {_number(o['min_val'])}, out={y})",
        f"minimum({y}, {_number(o['max_val'])}, out={y})",
    ]


def _number(value: float) -> str:
    """Text of a number; infinity and NaN have no literal."""
    return repr(value) if isfinite(value) else f"float('{value!r}')"


def _rsqrt(o: Options, x: str, y: str) -> list[str]:
    return [f"sqrt({x}, out={y})", f"divide(1, {y}, out={y})"]


def _sign(o: Options, x: str, y: str, b: str, c: str) -> list[str]:
    """NumPy's own has NaN for NaN."""
    return [
        f"greater({x}, zero, out={b})",
        f"less({x}, zero, out={c})",
        f"subtract({b}.view('i1'), {c}.view('i1'), out={y})",
    ]


def _hardtanh(o: Options, x: str, y: str) -> list[str]:
    return [
        f"maximum({x}, {o['min_val']!r}, out={y})",
        f"minimum({y}, {o['max_val']!r}, out={y})",
    ]


def _hardtanh_backward(o: Options, g: str, y: str, b: str) -> list[str]:
    return [
        f"less_equal({y}, {o['min_val']!r}, out={b})",
        *_zeroed(g, b),
        f"greater_equal({y}, {o['max_val']!r}, out={b})",
        *_zeroed(g, b),
    ]


CODES: Mapping[str, Code] = {
    "clamp": Code(_clamp, flops=2),
    "sign": Code(_sign, "bb", 3),
    "rsqrt": Code(_rsqrt, flops=2),
    "relu": Code(_relu, "z"),
    "threshold_backward": Code(_threshold_backward, "b"),
    "sigmoid": Code(_sigmoid, flops=4, needs_special=True),
    "sigmoid_backward": Code(_sigmoid_backward, "f", 3),
    "tanh": Code(_tanh),
    "tanh_backward": Code(_tanh_backward, "f", 3),
    "silu": Code(_silu, "f", 5, needs_special=True),
    "silu_backward": Code(_silu_backward, "ff", 9, needs_special=True),
    "softplus": Code(_softplus, "f", 6),
    "softplus_backward": Code(_softplus_backward, "f", 5, needs_special=True),
    "gelu": Code(_gelu, "ff", 18, needs_special=True),
    "gelu_backward": Code(_gelu_backward, "ff", 25, needs_special=True),
    "gelu_cdf": Code(_gelu_cdf, "ff", 17, needs_special=True),
    "gelu_slope": Code(_gelu_slope, "f", 7),
    "gelu_tanh": Code(_gelu_tanh, "f", 8),
    "gelu_cdf_tanh": Code(_gelu_tanh_cdf, "f", 7),
    "gelu_slope_tanh": Code(_gelu_tanh_slope, "f", 7),
    "gelu_backward_tanh": Code(_gelu_tanh_backward, "fff", 14),
    "elu": Code(_elu, "f", 6),
    "elu_backward": Code(_elu_backward, "fb", 3),
    "leaky_relu": Code(_leaky_relu, "f", 2),
    "leaky_relu_backward": Code(_leaky_relu_backward, "fb", 3),
    "hardtanh": Code(_hardtanh, flops=2),
    "hardtanh_backward": Code(_hardtanh_backward, "b", 4),
}
