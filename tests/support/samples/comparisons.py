"""The oracle's table: comparisons, choices, powers."""

import operator

from support.samples.row import Row


def compared(by):
    def comparison(nn, x, other):
        return by(x, other)

    return comparison


def where(nn, x, condition, other):
    return nn.where(condition, x, other)


def masked_fill(nn, x, mask, value):
    return nn.where(mask, value, x)


def clamp(nn, x, min_val=-1.0, max_val=1.0, inplace=False):
    """As hardtanh: PyTorch's samples of clamp have tensors as bounds."""
    return nn.clamp(x, min_val, max_val)


def bounded(nn, x, min=None, max=None):
    """By what takes tensors."""
    x = x if min is None else nn.maximum(x, min)
    return x if max is None else nn.minimum(x, max)


REALS = ("int32", "int64")
ALL = ("bool", *REALS)

ROWS = (
    *(
        Row(name, compared(getattr(operator, name)), dtypes=ALL, has_gradient=False)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    ),
    Row("where", where, dtypes=ALL),
    Row("masked_fill", masked_fill, dtypes=REALS),
    Row("nn.functional.hardtanh", clamp),
    Row("clamp", bounded, dtypes=REALS),
    Row("maximum", lambda nn, x, other: nn.maximum(x, other), dtypes=REALS),
    Row("minimum", lambda nn, x, other: nn.minimum(x, other), dtypes=REALS),
    Row("sign", lambda nn, x: nn.sign(x), dtypes=REALS),
    Row("abs", lambda nn, x: nn.abs(x), dtypes=REALS),
    Row("pow", lambda nn, x, exponent: nn.pow(x, exponent), dtypes=REALS),
    Row("__rpow__", lambda nn, x, base: base**x),
    Row("square", lambda nn, x: x**2, dtypes=REALS),
    Row("reciprocal", lambda nn, x: nn.reciprocal(x), dtypes=ALL),
    Row("rsqrt", lambda nn, x: nn.rsqrt(x), dtypes=ALL),
)
