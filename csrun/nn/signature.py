"""Argument checks of the public functions and layers of csrun.nn, with one-line errors.

A function or layer checks the values of its arguments. Their number and types are checked here,
by comparing a call that failed with the annotations of the signature.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike
from xdsl.utils.exceptions import VerifyException

from csrun.base.errors import CsrunError
from csrun.nn.errors import ShapeError, TraceError, user_line

P = ParamSpec("P")
R = TypeVar("R")

#: Exceptions of Python for an argument of the wrong type.
OF_WRONG_TYPES = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError)


def checked(function: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """Decorate a function: a call with wrong arguments raises a TraceError.

    Any other exception is a bug and passes unchanged.
    """
    title = f"nn.{name or function.__name__}"

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except CsrunError:
            raise
        except VerifyException as error:
            raise ShapeError(f"{user_line()}: {title}: {error}") from error
        except OF_WRONG_TYPES as error:
            _require_fit(title, function, args, kwargs, error)
            raise

    return call


def checked_layer(layer: type[Any]) -> None:
    """Decorate the constructor and the call of a layer class.

    The constructor's arguments are checked even if it succeeds, since some are only used later.
    """
    construct, name = layer.__init__, layer.__name__

    @wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        checked(construct, name)(self, *args, **kwargs)
        _require_fit(f"nn.{name}", construct, (self, *args), kwargs)

    layer.__init__ = init
    layer.__call__ = checked(layer.__call__, f"{name}(...)")


def _require_fit(
    title: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    cause: Exception | None = None,
) -> None:
    """Raises: TraceError for the first argument that does not fit the signature."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TraceError(
            f"{user_line()}: {title}: {error}; signature: {title[3:]}{_signature_text(signature)}"
        ) from error
    hints = get_type_hints(function)
    for argument, value in bound.arguments.items():
        if argument not in hints:
            continue
        variadic = signature.parameters[argument].kind is inspect.Parameter.VAR_POSITIONAL
        for one in value if variadic else (value,):
            if not fits(one, hints[argument]):
                raise TraceError(
                    f"{user_line()}: {title}: {argument} must be {describe_type(hints[argument])}, "
                    f"got {describe_value(one)}"
                ) from cause


def fits(value: Any, hint: Any) -> bool:
    """True for a value of an annotated type; NumPy scalars are numbers, integers are floats.

    For other generic types only the origin is compared.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if hint is ArrayLike:  # a union in Python 3.11, an alias without members since 3.12
        return hasattr(value, "__array__") or isinstance(value, Sequence | int | float)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float | np.integer | np.floating)
    if hint is bool:
        return isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1))
    if hint is int:
        return isinstance(value, int | np.integer)
    if origin is Callable:
        return callable(value)
    if origin is Sequence or origin is tuple:
        items = inner[:1] if origin is Sequence or ... in inner else ()
        is_sequence = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
        return is_sequence and all(fits(one, item) for item in items for one in value)
    return isinstance(value, origin or hint)


NAMES = {
    int: "an integer",
    float: "a number",
    bool: "True or False",
    str: "a string",
    type(None): "None",
}


def describe_type(hint: Any) -> str:
    """Describe an annotation, as "a tensor of the model or None"."""
    if hint is ArrayLike:
        return "an array of numbers"
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(describe_type(one) for one in inner))
    if origin is Callable:
        return "a function"
    if origin is not None:
        return f"a list, each item {describe_type(inner[0])}"
    return NAMES.get(hint, "a tensor of the model" if hint.__name__ == "Tensor" else hint.__name__)


def describe_value(value: Any) -> str:
    """Describe a value for an error message."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)}"
    return repr(value)


def _signature_text(signature: inspect.Signature) -> str:
    """Parameters with their defaults, without annotations or self."""
    parameters = [
        p.replace(annotation=inspect.Parameter.empty, default=_plain(p.default))
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    return str(inspect.Signature(parameters))


def _plain(default: Any) -> Any:
    """Replace a default that is a function by its name."""
    if default is inspect.Parameter.empty or not callable(default):
        return default
    return _Name(getattr(default, "__name__", "initializer"))


class _Name(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
