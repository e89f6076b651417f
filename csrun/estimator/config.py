"""Result of a model function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from csrun.base.callers import user_line
from csrun.base.errors import UsageError
from csrun.executable import RunMode
from csrun.nn import Optimizer, Tensor, TrainOp

HostFunction = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class CSEstimatorSpec:
    """Return value of model_fn.

    mode: RunMode. loss: the scalar to report. train_op: result of `minimize`, for training, of this
    or another scalar. predictions: tensors that `predict` returns for each sample, by name.
    host_call: (function, traced tensors); the function gets their values at each step as NumPy
    arrays, without padding, and returns metrics by name.
    """

    mode: RunMode
    loss: Tensor | None = None
    train_op: TrainOp | None = None
    host_call: tuple[HostFunction, Sequence[Tensor]] | None = None
    predictions: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        """Raises: UsageError, with the model's line, for a field of another type"""
        wrong = next(filter(None, (self._wrong_train_op(), self._wrong_tensors())), None)
        if wrong:
            raise UsageError(f"{user_line()}: CSEstimatorSpec: {wrong}")

    def _wrong_train_op(self) -> str | None:
        if self.train_op is None or isinstance(self.train_op, TrainOp):
            return None
        got, hint = type(self.train_op).__name__, "optimizer.minimize(loss)"
        if isinstance(self.train_op, Optimizer):
            hint = f"nn.{got}(...).minimize(loss)"
        return f"train_op must be the result of minimize, got {got}: write train_op={hint}"

    def _wrong_tensors(self) -> str | None:
        if self.loss is not None and not isinstance(self.loss, Tensor):
            return f"loss must be a tensor of the model, got {self.loss!r}"
        if self.predictions is not None and not (
            isinstance(self.predictions, Mapping)
            and all(isinstance(one, Tensor) for one in self.predictions.values())
        ):
            return (
                "predictions must be tensors by name, as {'class': nn.argmax(logits)}, "
                f"got {self.predictions!r}"
            )
        call = self.host_call
        if call is None:
            return None
        is_pair = isinstance(call, tuple | list) and len(call) == 2 and callable(call[0])
        if not is_pair or not all(isinstance(one, Tensor) for one in call[1]):
            return (
                "host_call must be a function and a list of tensors, as "
                f"(metrics, [nn.argmax(logits), labels]), got {call!r}"
            )
        return None
