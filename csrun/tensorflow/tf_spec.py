"""CSEstimatorSpec: result of a TensorFlow model_fn."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

HostCall = tuple[Any, ...]


class _Fields(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metric_ops: Mapping[str, Any] | None
    host_call: HostCall | None
    others: Mapping[str, Any]


#: Fields of tf.estimator.EstimatorSpec that have no effect in csrun.
WITHOUT_EFFECT = (
    "export_outputs",
    "training_chief_hooks",
    "training_hooks",
    "scaffold",
    "evaluation_hooks",
    "prediction_hooks",
)


class CSEstimatorSpec(_Fields):
    """Return value of model_fn.

    mode: 'train', 'eval' or 'infer'.
    loss: scalar tensor.
    train_op: result of `minimize`.
    predictions: a tensor, or tensors by name.
    eval_metric_ops: pairs of (value, update) by name.
    host_call: (function, tensors) that returns such pairs; only one of the two may be given.

    Raises: ValueError for both, or a host_call of another form
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        host_call: HostCall | None = None,
        **others: Any,
    ) -> Self:
        unknown = set(others) - set(WITHOUT_EFFECT)
        if unknown:
            raise TypeError(f"CSEstimatorSpec has no field {', '.join(sorted(unknown))}")
        if host_call and eval_metric_ops:
            raise ValueError(
                "Please specify only one of `host_call` or `eval_metric_ops`, not both."
            )
        call = validate_host_call(host_call) or None
        fields = mode, predictions, loss, train_op, eval_metric_ops, call, others
        return super().__new__(cls, *fields)


def validate_host_call(host_call: Any) -> HostCall:
    """Return a host_call of (function, tensors) or (function, tensors, tensors); () for none.

    Raises: ValueError for another form
    """
    if not host_call:
        return ()
    if not isinstance(host_call, list | tuple) or len(host_call) not in (2, 3):
        raise ValueError("host_call must be an iterable with length 2 or 3.")
    if not callable(host_call[0]):
        raise ValueError("Expected first item of host_call to be a callable.")
    for place, item in zip(("second", "third"), host_call[1:], strict=False):
        if not isinstance(item, list | tuple):
            raise ValueError(f"Expected {place} item of host_call to be an iterable.")
    return tuple(host_call)


def host_call_to_eval_metric_ops(host_call: Any) -> dict[str, Any]:
    """Call a host_call's function, and return its pairs of (value, update) by name.

    Raises: ValueError if it returns neither a dict nor a sequence
    """
    function: Callable[..., Any] = host_call[0]
    found = function(*host_call[1])
    if isinstance(found, Mapping):
        named = dict(found)
    elif isinstance(found, Sequence):
        named = {f"elem_{index}": value for index, value in enumerate(found)}
    else:
        raise ValueError("Invalid eval_metric_ops")
    return {name: pair for name, pair in named.items() if _is_pair(pair)}


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and hasattr(value[0], "op")
