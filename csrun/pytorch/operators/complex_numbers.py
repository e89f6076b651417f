"""Complex numbers as two values, and Fourier transforms.

Operators that are linear over the real numbers act on each of the two parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, prod
from typing import Any

from torch.utils._pytree import tree_leaves, tree_map
from xdsl.ir import SSAValue

from csrun.cirh.ops import fourier
from csrun.cirh.ops.arithmetic import AddOp, DivOp, ExpOp, LogOp, MulOp, NegOp, SqrtOp, SubOp
from csrun.cirh.ops.comparison import EqOp, MaximumOp, WhereOp
from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.powers import AbsOp
from csrun.cirh.ops.shape import SelectOp
from csrun.cirh.ops.trigonometry import Atan2Op, CosOp, SinOp
from csrun.pytorch.operators.base import (
    REAL_TYPES,
    Complex,
    Emission,
    Emitter,
    dtype,
    rank,
    real_type,
    shape,
)
from csrun.pytorch.operators.elementwise import as_type, logical_not
from csrun.pytorch.record.recording import TensorKind

Operand = Complex | SSAValue | complex | float


def is_complex(e: Emission, arguments: Any) -> bool:
    """True if an operand or a result of the current operator is complex."""
    is_made = any(kind.dtype in REAL_TYPES for kind in e.kinds)
    return is_made or any(isinstance(each, Complex) for each in tree_leaves(arguments))


@contextmanager
def real_kinds(e: Emission) -> Iterator[None]:
    """Context manager in which the results of the current operator are real."""
    before = e.kinds
    e.kinds = tuple(TensorKind(k.shape, real_type(k.dtype)) for k in before)
    try:
        yield
    finally:
        e.kinds = before


def by_parts(emitter: Callable[..., Any]) -> Emitter:
    """Return the emitter of an operator that is linear over the real numbers, of both parts."""

    def emit(e: Emission, *given: Any, **options: Any) -> Any:
        real, imag = (
            emitter(e, *tree_map(lambda x, p=part: _part(e, x, p), given), **options)
            for part in (0, 1)
        )
        if isinstance(real, tuple):
            return tuple(Complex(a, b) for a, b in zip(real, imag, strict=True))
        return Complex(real, imag)

    return emit


def _part(e: Emission, x: Any, part: int) -> Any:
    """Return a part of an argument; other arguments, such as indices, are in both parts."""
    if isinstance(x, Complex):
        return x.parts[part]
    if part and isinstance(x, SSAValue) and dtype(x).startswith("float"):
        return e.full(0, dtype(x), shape(x))
    return x


def _parts(e: Emission, x: Operand) -> tuple[SSAValue, SSAValue]:
    """Return both parts of an operand, in the type of the current result's parts."""
    return _parts_as(e, x, e.dtype)


def _parts_as(e: Emission, x: Operand, kind: str) -> tuple[SSAValue, SSAValue]:
    if isinstance(x, Complex):
        return e.cast(x.real, kind), e.cast(x.imag, kind)
    if isinstance(x, complex):
        return e.full(x.real, kind), e.full(x.imag, kind)
    return as_type(e, x, kind), e.full(0, kind)


def _is_real(x: Operand) -> bool:
    return not isinstance(x, Complex | complex)


def _wide(e: Emission, real: SSAValue, imag: SSAValue) -> Complex:
    return Complex(e.expand(real, e.sizes), e.expand(imag, e.sizes))


def add(e: Emission, a: Operand, b: Operand, alpha: complex = 1) -> Complex:
    if alpha != 1:
        b = _product(e, b, alpha)
    (x, y), (u, v) = _parts(e, a), _parts(e, b)
    imag = y if _is_real(b) else v if _is_real(a) else e.emit(AddOp, y, v)
    return _wide(e, e.emit(AddOp, x, u), imag)


def subtract(e: Emission, a: Operand, b: Operand, alpha: complex = 1) -> Complex:
    return add(e, a, b, -alpha)


def _product(e: Emission, a: Operand, b: Operand) -> Complex:
    if _is_real(a):
        a, b = b, a
    (x, y), (u, v) = _parts(e, a), _parts(e, b)
    if _is_real(b):
        return Complex(e.emit(MulOp, x, u), e.emit(MulOp, y, u))
    real = e.emit(SubOp, e.emit(MulOp, x, u), e.emit(MulOp, y, v))
    return Complex(real, e.emit(AddOp, e.emit(MulOp, x, v), e.emit(MulOp, y, u)))


def multiply(e: Emission, a: Operand, b: Operand) -> Complex:
    return _wide(e, *_product(e, a, b).parts)


def reversed_subtract(e: Emission, a: Operand, b: Operand, alpha: complex = 1) -> Complex:
    return add(e, b, a, -alpha)


def divide(e: Emission, a: Operand, b: Operand) -> Complex:
    (x, y), (u, v) = _parts(e, a), _parts(e, b)
    if _is_real(b):
        return _wide(e, e.emit(DivOp, x, u), e.emit(DivOp, y, u))
    size, divisor = _scaled(e, Complex(u, v))
    squares = _squares(e, divisor)
    found = _product(e, a, conjugate(e, divisor))
    each = (e.emit(DivOp, e.emit(DivOp, part, squares), size) for part in found.parts)
    return _wide(e, *each)


def _squares(e: Emission, x: Complex) -> SSAValue:
    return e.emit(AddOp, *(e.emit(MulOp, part, part) for part in x.parts))


def _scaled(e: Emission, x: Complex) -> tuple[SSAValue, Complex]:
    """Return the larger part's size, 1 for 0 and infinity, and x divided by it: no overflow."""
    size = e.emit(MaximumOp, *(e.emit(AbsOp, part) for part in x.parts))
    kind = dtype(size)
    one = e.full(1, kind)
    for number in (0.0, inf):
        size = e.emit(WhereOp, e.emit(EqOp, size, e.full(number, kind)), one, size)
    return size, Complex(*(e.emit(DivOp, part, size) for part in x.parts))


def matrix_product(emitter: Callable[..., Any]) -> Emitter:
    """Return the emitter of a product of complex matrices."""

    def emit(e: Emission, a: Complex, b: Complex) -> Complex:
        (x, y), (u, v) = _parts(e, a), _parts(e, b)
        real = e.emit(SubOp, emitter(e, x, u), emitter(e, y, v))
        return Complex(real, e.emit(AddOp, emitter(e, x, v), emitter(e, y, u)))

    return emit


def equal(e: Emission, a: Operand, b: Operand) -> SSAValue:
    """True where both parts are equal."""
    kind = dtype(next(x.real for x in (a, b) if isinstance(x, Complex)))
    (x, y), (u, v) = (_parts_as(e, each, kind) for each in (a, b))
    each = e.emit(EqOp, x, u), e.emit(EqOp, y, v)
    return e.expand(e.emit(WhereOp, *each, e.full(0, "bool")), e.sizes)


def unequal(e: Emission, a: Operand, b: Operand) -> SSAValue:
    return logical_not(e, equal(e, a, b))


def conjugate(e: Emission, x: Complex) -> Complex:
    return Complex(x.real, e.emit(NegOp, x.imag))


def absolute(e: Emission, x: Complex) -> SSAValue:
    size, scaled = _scaled(e, x)
    return e.emit(MulOp, size, e.emit(SqrtOp, _squares(e, scaled)))


def direction(e: Emission, x: Complex) -> Complex:
    """x / |x|, 0 for 0."""
    size = absolute(e, x)
    is_zero = e.emit(EqOp, size, e.full(0, dtype(size)))
    size = e.emit(WhereOp, is_zero, e.full(1, dtype(size)), size)
    return Complex(e.emit(DivOp, x.real, size), e.emit(DivOp, x.imag, size))


def exponential(e: Emission, x: Complex) -> Complex:
    return polar(e, e.emit(ExpOp, x.real), x.imag)


def polar(e: Emission, size: SSAValue, angle: SSAValue) -> Complex:
    real, imag = e.emit(CosOp, angle), e.emit(SinOp, angle)
    return _wide(e, e.emit(MulOp, size, real), e.emit(MulOp, size, imag))


def logarithm(e: Emission, x: Complex) -> Complex:
    return Complex(e.emit(LogOp, absolute(e, x)), angle(e, x))


def power(e: Emission, x: Complex, exponent: float) -> Complex:
    """Emit small powers as products, others by logarithm."""
    if exponent == 0:
        return Complex(e.full(1, e.dtype, e.sizes), e.full(0, e.dtype, e.sizes))
    if exponent in (1, 2, 3):
        found = x
        for _ in range(int(exponent) - 1):
            found = _product(e, found, x)
        return found
    return exponential(e, _product(e, logarithm(e, x), exponent))


def angle(e: Emission, x: Complex) -> SSAValue:
    return e.emit(Atan2Op, x.imag, x.real)


def view_as_real(e: Emission, x: Complex) -> SSAValue:
    """Shapes: [...] -> [..., 2]"""
    each = (e.view(part, (*shape(part), 1)) for part in x.parts)
    return e.emit(CatOp, *each, dim=rank(x.real))


def view_as_complex(e: Emission, x: SSAValue) -> Complex:
    """Shapes: [..., 2] -> [...]"""
    last = rank(x) - 1
    return Complex(*(e.emit(SelectOp, x, dim=last, index=index) for index in (0, 1)))


def to_copy(e: Emission, x: Complex | SSAValue, **options: Any) -> Complex | SSAValue:
    """Cast to another type; a real one drops the imaginary part."""
    kind = options.get("dtype")
    if _is_real(x) if kind is None else kind not in REAL_TYPES:
        return e.cast(_part(e, x, 0), e.dtype)
    return Complex(*_parts(e, x)) if isinstance(x, Complex) else _wide(e, *_parts(e, x))


def copy(e: Emission, x: Any, source: Any, *unused: Any) -> Any:
    """Emit the source in the shape and type of x, which is overwritten."""
    real, imag = (e.expand(part, e.sizes) for part in _parts(e, source))
    return Complex(real, imag) if isinstance(x, Complex) else real


def zeros(e: Emission, *given: Any, **options: Any) -> Complex:
    """Emit zeros, also in the shape of another value."""
    return full(e, None, 0)


def ones_like(e: Emission, x: Complex, **options: Any) -> Complex:
    return full(e, x, 1)


def full(e: Emission, x: Any, number: complex, **options: Any) -> Complex:
    """Emit a number in the shape of the result."""
    return Complex(*(e.full(part, e.dtype, e.sizes) for part in (number.real, number.imag)))


def padded(emitter: Callable[..., Any]) -> Emitter:
    """Return the emitter of a padding by a number."""

    def emit(e: Emission, x: Complex, pad: Sequence[int], value: complex = 0) -> Complex:
        numbers = value.real, value.imag
        parts = zip(x.parts, numbers, strict=True)
        return Complex(*(emitter(e, part, pad, number) for part, number in parts))

    return emit


def where(e: Emission, condition: SSAValue, a: Operand, b: Operand) -> Complex:
    each = zip(_parts(e, a), _parts(e, b), strict=True)
    return Complex(*(e.expand(e.emit(WhereOp, condition, x, y), e.sizes) for x, y in each))


def _scale(normalization: int, sizes: Sequence[int]) -> float:
    """Return the factor of a transform of this size, by ATen's number of a normalization."""
    return float(prod(sizes) ** (-0.5 * normalization))


def _axes(x: SSAValue, dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(d % rank(x) for d in dims)


def fft_r2c(
    e: Emission, x: SSAValue, dims: Sequence[int], normalization: int, onesided: bool
) -> Complex:
    x, axes = e.cast(x, e.dtype), _axes(x, dims)
    scale = _scale(normalization, [shape(x)[d] for d in axes])
    return Complex(*e.emit_all(fourier.FftR2cOp, x, dims=axes, scale=scale, onesided=onesided))


def fft_c2c(
    e: Emission, x: Complex, dims: Sequence[int], normalization: int, forward: bool
) -> Complex:
    axes = _axes(x.real, dims)
    scale = _scale(normalization, [shape(x.real)[d] for d in axes])
    options: dict[str, Any] = {"dims": axes, "scale": scale, "inverse": not forward}
    return Complex(*e.emit_all(fourier.FftC2cOp, *x.parts, **options)) if axes else x


def fft_c2r(
    e: Emission, x: Complex, dims: Sequence[int], normalization: int, last_dim_size: int
) -> SSAValue:
    axes = _axes(x.real, dims)
    scale = _scale(normalization, [e.sizes[d] for d in axes])
    return e.emit(fourier.FftC2rOp, *x.parts, dims=axes, scale=scale, size=last_dim_size)


#: Operators that act on each of the two parts.
_LINEAR = (
    *("view.default", "_unsafe_view.default", "reshape.default", "t.default", "transpose.int"),
    *("permute.default", "expand.default", "slice.Tensor", "slice_backward.default", "select.int"),
    *("select_backward.default", "unsqueeze.default", "squeeze.default", "squeeze.dim"),
    *("squeeze.dims", "clone.default", "contiguous.default", "split.Tensor", "unbind.int"),
    *("split_with_sizes.default", "cat.default", "stack.default"),
    *("slice_scatter.default", "select_scatter.default", "flip.default"),
    *("index.Tensor", "index_select.default", "sum.default", "sum.dim_IntList", "neg.default"),
    *("mean.default", "mean.dim", "repeat.default", "unfold.default", "unfold_backward.default"),
    *("index_put.default", "_unsafe_index_put.default", "as_strided.default"),
    *("as_strided_scatter.default", "diagonal.default", "diagonal_backward.default"),
)

#: Operators that make a tensor to be written.
_ZEROS = ("zeros_like", "zeros", "new_zeros", "new_empty_strided", "empty_like")


def complex_emitters(emitters: Mapping[str, Emitter]) -> dict[str, Emitter]:
    """Return the emitters of operators with complex operands or results.

    emitters: those of real ones.
    """
    products = ("aten.mm.default", "aten.bmm.default")
    return {
        **{f"aten.{name}": by_parts(emitters[f"aten.{name}"]) for name in _LINEAR},
        **{name: matrix_product(emitters[name]) for name in products},
        **{f"aten.add.{form}": add for form in ("Tensor", "Scalar")},
        **{f"aten.sub.{form}": subtract for form in ("Tensor", "Scalar")},
        **{f"aten.rsub.{form}": reversed_subtract for form in ("Tensor", "Scalar")},
        **{f"aten.mul.{form}": multiply for form in ("Tensor", "Scalar")},
        **{f"aten.div.{form}": divide for form in ("Tensor", "Scalar")},
        **{f"aten.eq.{form}": equal for form in ("Tensor", "Scalar")},
        **{f"aten.ne.{form}": unequal for form in ("Tensor", "Scalar")},
        **{f"aten.{name}.default": conjugate for name in ("_conj", "conj_physical")},
        **{f"aten.{name}.default": zeros for name in _ZEROS},
        "aten.ones_like.default": ones_like,
        "aten.full_like.default": full,
        "aten.fill.Scalar": full,
        "aten.constant_pad_nd.default": padded(emitters["aten.constant_pad_nd.default"]),
        "aten._conj_physical.default": conjugate,
        "aten.abs.default": absolute,
        "aten.sgn.default": direction,
        "aten.exp.default": exponential,
        "aten.angle.default": angle,
        "aten.log.default": logarithm,
        "aten.sqrt.default": lambda e, x: power(e, x, 0.5),
        "aten.reciprocal.default": lambda e, x: divide(e, 1.0, x),
        "aten.pow.Tensor_Scalar": power,
        "aten.polar.default": polar,
        "aten.complex.default": lambda e, a, b: _wide(e, a, b),
        "aten.view_as_real.default": view_as_real,
        "aten.view_as_complex.default": view_as_complex,
        "aten._to_copy.default": to_copy,
        "aten.copy.default": copy,
        "aten.where.self": where,
        "aten.masked_fill.Scalar": lambda e, x, mask, number: where(e, mask, number, x),
        "aten._fft_r2c.default": fft_r2c,
        "aten._fft_c2c.default": fft_c2c,
        "aten._fft_c2r.default": fft_c2r,
    }
