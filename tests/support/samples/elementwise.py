"""The oracle's table: arithmetic and activations."""

from support.samples.row import Row, skip


def add(nn, x, other, alpha=1):
    return x + other if alpha == 1 else x + alpha * other


def sub(nn, x, other, alpha=1):
    return x - other if alpha == 1 else x - alpha * other


def mul(nn, x, other):
    return x * other


def div(nn, x, other, rounding_mode=None):
    return x / other


def leaky_relu(nn, x, negative_slope=0.01, inplace=False):
    return nn.leaky_relu(x, negative_slope)


def elu(nn, x, alpha=1.0, inplace=False):
    return nn.elu(x, alpha)


def gelu(nn, x, approximate="none"):
    return nn.gelu(x, approximate == "tanh")


def gelu_beside(nn, x, approximate="none"):
    """Of what others read, too: its slope does not take its place."""
    return nn.gelu(x, approximate == "tanh") + (x - x)


def gelu_tanh(nn, x, approximate="none"):
    return nn.gelu_tanh(x) if approximate == "tanh" else skip("approximate")


def logsigmoid(nn, x):
    """PyTorch's samples of softplus have a separate threshold."""
    return -nn.softplus(-x)


def function(name):
    """The function of csrun.nn of this name, of one argument."""

    def ours(nn, x):
        return getattr(nn, name)(x)

    return ours


INTEGERS = ("int32", "int64")

#: Whose names are the same in csrun.nn and in PyTorch's database.
FUNCTIONS = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("expm1", "floor", "ceil", "trunc"),
)

ROWS = (
    Row("add", add, dtypes=INTEGERS),
    Row("sub", sub, dtypes=INTEGERS),
    Row("mul", mul, dtypes=INTEGERS),
    Row("div", div, "no_rounding_mode", dtypes=INTEGERS),
    Row("true_divide", div, dtypes=INTEGERS),
    Row("__radd__", lambda nn, x, other: other + x, dtypes=INTEGERS),
    Row("__rsub__", lambda nn, x, other: other - x, dtypes=INTEGERS),
    Row("__rmul__", lambda nn, x, other: other * x, dtypes=INTEGERS),
    Row("__rdiv__", lambda nn, x, other: other / x, dtypes=INTEGERS),
    Row("neg", lambda nn, x: -x, dtypes=INTEGERS),
    Row("exp", lambda nn, x: nn.exp(x), dtypes=("bool", *INTEGERS)),
    Row("log", lambda nn, x: nn.log(x), dtypes=("bool", *INTEGERS)),
    Row("log1p", lambda nn, x: nn.log1p(x), dtypes=("bool", *INTEGERS)),
    Row("sqrt", lambda nn, x: nn.sqrt(x), dtypes=("bool", *INTEGERS)),
    Row("sigmoid", lambda nn, x: nn.sigmoid(x), dtypes=("bool", *INTEGERS)),
    Row("tanh", lambda nn, x: nn.tanh(x), dtypes=("bool", *INTEGERS)),
    *(Row(name, function(name)) for name in FUNCTIONS),
    Row("round", lambda nn, x, decimals=0: nn.round(x)),
    Row("atan2", lambda nn, x, y: nn.atan2(x, y), dtypes=INTEGERS),
    Row("floor_divide", lambda nn, x, y: nn.floor_divide(x, y), has_gradient=False),
    Row("remainder", lambda nn, x, y: nn.remainder(x, y)),
    Row("fmod", lambda nn, x, y: nn.fmod(x, y)),
    Row("nn.functional.relu", lambda nn, x, inplace=False: nn.relu(x)),
    Row("nn.functional.relu6", lambda nn, x, inplace=False: nn.relu6(x)),
    Row("nn.functional.silu", lambda nn, x, inplace=False: nn.silu(x)),
    Row("nn.functional.selu", lambda nn, x, inplace=False: nn.selu(x)),
    Row("nn.functional.logsigmoid", logsigmoid),
    Row("nn.functional.leaky_relu", leaky_relu),
    Row("nn.functional.elu", elu),
    Row("nn.functional.softshrink", lambda nn, x, lambd=0.5: nn.softshrink(x, lambd)),
    Row("nn.functional.gelu", gelu),
    Row("nn.functional.gelu", gelu_beside),
    Row("nn.functional.gelu", gelu_tanh),
)
