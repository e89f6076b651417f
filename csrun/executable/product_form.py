"""Form of a matrix product for machine code: addresses, sizes and strides of its operands."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from csrun.base.half_formats import WORD
from csrun.executable.product_operand import ProductOperand


@dataclass(frozen=True)
class BatchAxis:
    """An axis of a batch: its size, and strides of the three operands."""

    size: int
    a: int
    b: int
    c: int

    def merged(self, inner: "BatchAxis") -> "BatchAxis | None":
        """This axis with the next one as one axis."""
        pairs = ((self.a, inner.a), (self.b, inner.b), (self.c, inner.c))
        if all(outer == stride * inner.size for outer, stride in pairs):
            return replace(inner, size=self.size * inner.size)
        return None


@dataclass(frozen=True)
class ProductForm:
    """A batch of products of which C has columns that are consecutive."""

    a: int
    b: int
    c: int
    m: int
    n: int
    k: int
    a_row: int
    a_k: int
    b_k: int
    b_col: int
    c_row: int
    adds: bool
    axes: tuple[BatchAxis, ...] = ()
    b_size: int = 4  # bytes of an element

    @property
    def work(self) -> int:
        """Multiplications of an item."""
        return self.m * self.n * self.k

    def item(self, places: Sequence[int]) -> "ProductForm":
        """The product, or the batch, at these places of the first axes."""
        at = list(zip(places, self.axes, strict=False))
        return replace(
            self,
            a=self.a + 4 * sum(n * axis.a for n, axis in at),
            b=self.b + 4 * sum(n * axis.b for n, axis in at),
            c=self.c + 4 * sum(n * axis.c for n, axis in at),
            axes=self.axes[len(at) :],
        )

    def of_k(self, first: int, depth: int) -> "ProductForm":
        """The product of some numbers of k, added to that of those before."""
        return replace(
            self,
            a=self.a + 4 * first * self.a_k,
            b=self.b + self.b_size * first * self.b_k,
            k=min(depth, self.k - first),
            adds=self.adds or first > 0,
        )


def form_of(
    a: ProductOperand, b: ProductOperand, out: ProductOperand, adds: bool
) -> ProductForm | None:
    """Return the product, transposed if rows of `out` are consecutive, its axes merged; None if it
    has no such form.
    """
    operands = (a, b, out)
    if any(len(o.shape) < 2 or not prod(o.shape) for o in operands):
        return None
    if any(o.dtype != "float32" for o in (a, out)) or b.dtype not in ("float32", WORD):
        return None
    if not out.is_distinct or any(_overlap(out, operand) for operand in (a, b)):
        return None
    (m, k), n = a.shape[-2:], b.shape[-1]
    if b.shape[-2] != k or out.shape[-2:] != (m, n):
        return None
    lead = out.shape[:-2]
    of_a, of_b = _lead_strides(a, lead), _lead_strides(b, lead)
    if of_a is None or of_b is None:
        return None
    axes = [
        BatchAxis(*each)
        for each in zip(lead, of_a, of_b, out.strides[:-2], strict=True)
        if each[0] > 1
    ]
    (a_row, a_k), (b_k, b_col), (c_row, c_col) = a.strides[-2:], b.strides[-2:], out.strides[-2:]
    if n == 1 or c_col == 1:
        form = ProductForm(
            a.address, b.address, out.address, m, n, k, a_row, a_k, b_k, b_col, c_row, adds
        )
        form = replace(form, b_size=b.size)
    elif m == 1 or c_row == 1:
        axes = [replace(axis, a=axis.b, b=axis.a) for axis in axes]
        form = ProductForm(
            b.address, a.address, out.address, n, m, k, b_col, b_k, a_k, a_row, c_col, adds
        )
    else:
        return None
    return _merged(replace(form, axes=tuple(axes)))


def _lead_strides(operand: ProductOperand, lead: Sequence[int]) -> list[int] | None:
    """Strides of the leading axes, 0 where they are broadcast."""
    own = len(operand.shape) - 2
    if own > len(lead):
        return None
    found = [0] * (len(lead) - own)
    for n, stride, size in zip(
        operand.shape[:-2], operand.strides, lead[len(found) :], strict=False
    ):
        if n not in (1, size):
            return None
        found.append(stride if n > 1 else 0)
    return found


def _merged(form: ProductForm) -> ProductForm:
    """Axes that are one, and rows of a batch with one B."""
    axes: list[BatchAxis] = []
    for axis in form.axes:
        joined = axes[-1].merged(axis) if axes else None
        axes[-1:] = [joined] if joined else [*axes[-1:], axis]
    while axes and not axes[-1].b:
        last = axes[-1]
        if form.m == 1:  # its rows are as far apart as the items
            form = replace(form, a_row=last.a, c_row=last.c)
        elif last.a != form.m * form.a_row or last.c != form.m * form.c_row:
            break
        form = replace(form, m=form.m * last.size)
        axes.pop()
    return replace(form, axes=tuple(axes))


def _overlap(x: ProductOperand, y: ProductOperand) -> bool:
    (x_first, x_end), (y_first, y_end) = x.span, y.span
    return x_first < y_end and y_first < x_end
