"""Calls of the public names of csrun.nn that do not fit their signatures, in one line.

A function or layer checks what it can say most about itself. What is left, an argument too many or
of another type, is found here by comparing the call with the signature's annotations.
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

#: What Python itself raises where an argument has another type than the annotations say.
OF_WRONG_TYPES = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError)


def checked(function: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """Make a call that fails for its arguments' number or types a TraceError.

    Any other failure is a bug and stays as it is.
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
    """Have the constructor and the call of a layer class checked.

    The constructor's arguments are looked at even where it took them: they are used later.
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
            f"{user_line()}: {title}: {error}; it takes {title[3:]}{_shown(signature)}"
        ) from error
    hints = get_type_hints(function)
    for argument, value in bound.arguments.items():
        if argument not in hints:
            continue
        variadic = signature.parameters[argument].kind is inspect.Parameter.VAR_POSITIONAL
        for one in value if variadic else (value,):
            if not fits(one, hints[argument]):
                raise TraceError(
                    f"{user_line()}: {title}: {argument} must be {words_of(hints[argument])}, "
                    f"got {described(one)}"
                ) from cause


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; numbers may be NumPy's, integers stand for floats.

    Of other generic types only the origin is compared.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if hint is ArrayLike:  # a union up to Python 3.11, and an alias without members from 3.12 on
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


def words_of(hint: Any) -> str:
    """An annotation in words, such as "a tensor of the model or None"."""
    if hint is ArrayLike:
        return "an array of numbers"
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(words_of(one) for one in inner))
    if origin is Callable:
        return "a function"
    if origin is not None:
        return f"a list, each {words_of(inner[0])}"
    return NAMES.get(hint, "a tensor of the model" if hint.__name__ == "Tensor" else hint.__name__)


def described(value: Any) -> str:
    """A value in an error message."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)}"
    return repr(value)


def _shown(signature: inspect.Signature) -> str:
    """The arguments with their defaults, without annotations or self."""
    parameters = [
        p.replace(annotation=inspect.Parameter.empty, default=_plain(p.default))
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    return str(inspect.Signature(parameters))


def _plain(default: Any) -> Any:
    """A function that is a default is shown by its name."""
    if default is inspect.Parameter.empty or not callable(default):
        return default
    return _Name(getattr(default, "__name__", "initializer"))


class _Name(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
