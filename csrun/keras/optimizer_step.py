"""A Keras optimizer's own update, recorded as operators of the step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, count
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map

from csrun.base.errors import UsageError
from csrun.keras.torch_backend import keras
from csrun.keras.variables_module import KerasModel, hold_tensor, stored_name, tensor_at
from csrun.pytorch.errors import CaptureError
from csrun.pytorch.record.model_group import ModelGroup
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.traced import TracedTensor

OPTIMIZER_FOLDER = "optimizer/"  # prefix of the names of its variables in a checkpoint
RATE_NAME = f"{OPTIMIZER_FOLDER}learning_rate"  # of a learning rate that is a variable
MOST_STEPS = 2**24  # limit up to which float32 counts exactly
#: Methods that the PyTorch backend implements for all variables at once, by operators on lists.
_FOREACH_METHODS = (
    "_apply_weight_decay",
    "_backend_update_step",
    "_backend_reset_gradient_accumulators",
    "_backend_increment_gradient_accumulators",
)


class OptimizerStep:
    """A compiled model's optimizer, including `use_ema`, accumulation, decay and its own schedule.

    Its variables are states of the program, among them the step count, as float32, and the learning
    rate, if it is a variable. In mixed precision its loss scale is recorded, too; in float32 the
    loss is not scaled.

    name: of its class.
    module: the model's variables and the optimizer's, which the step writes.
    """

    def __init__(self, model: KerasModel, optimizer: Any, is_mixed: bool = False) -> None:
        self._model, self._optimizer, self._is_mixed = model, optimizer, is_mixed
        self.name = type(optimizer).__name__
        require_free_folder(model)
        whole = model.keras.optimizer if is_mixed else optimizer
        self._scaler = whole if isinstance(whole, keras.optimizers.LossScaleOptimizer) else None
        if not whole.built:
            whole.build(model.trained)
        state = [*optimizer.variables]
        if self._scaler is not None:
            state += [self._scaler.step_counter, self._scaler.dynamic_scale]
        model.state = named_variables(state, OPTIMIZER_FOLDER)
        self.module = ModelGroup((), ())
        model.hold_variables(self.module)
        for name, variable in model.state.items():
            value = variable.value.detach().cpu().to(torch.float32, copy=True)
            hold_tensor(self.module, name, value)

    @property
    def rate(self) -> float | None:
        """Learning rate of the Keras optimizer; None if it is a schedule."""
        found = self._model.state.get(RATE_NAME)
        return float(found) if found is self._optimizer._learning_rate is not None else None

    def assigns(self, name: str) -> bool:
        """True for the name of a variable that the update assigns, instead of the model's forward
        pass.
        """
        trained = map(stored_name, self._model.trained)
        return name.startswith(OPTIMIZER_FOLDER) or name in trained

    def require_countable(self, last: int | None) -> None:
        """Raises: UsageError for a last step that cannot be counted"""
        if last is not None and last > MOST_STEPS:
            raise UsageError(
                f"optimizer {self.name}: its recorded update counts steps in float32, up to "
                f"{MOST_STEPS}, got max_steps={last}: lower max_steps"
            )

    def seed(self) -> torch.Tensor:
        """Initial gradient of the backward pass: the loss scale, or 1."""
        one = torch.ones(())
        if not self._is_mixed:
            return one
        with self._scope():
            scaled: torch.Tensor = (self._scaler or self._optimizer).scale_loss(one)
        return scaled

    def record(self, recorder: StepRecorder) -> None:
        """Record the update by the gradients of the trained variables.

        Raises: UsageError for an update that csrun cannot record
        """
        trained = [tensor_at(self.module, stored_name(v)) for v in self._model.trained]
        branches = Branches(recorder, [tensor for _, tensor in self._tensors])
        apply = (self._scaler or self._optimizer).apply
        as_recorded = recorded_as_operators(self._optimizer, branches, self._is_mixed)
        with torch.no_grad(), self._scope(), as_recorded:
            try:
                apply([tensor.grad for tensor in trained], self._model.trained)
            except CaptureError as error:
                raise UsageError(
                    f"optimizer {self.name}: csrun cannot record its update: {error}"
                ) from error
        for tensor in trained:
            tensor.grad = None

    @property
    def _tensors(self) -> list[tuple[Any, torch.Tensor]]:
        named = self._model.named.items()
        return [(variable, tensor_at(self.module, name)) for name, variable in named]

    def _scope(self) -> "WrittenScope":
        return WrittenScope(self._tensors, partial(refusal_of_write, self._optimizer))


def refusal_of_write(optimizer: Any, variable: Any) -> UsageError:
    """Return the error for an assignment to a variable that is not part of the step."""
    return UsageError(
        f"optimizer {type(optimizer).__name__}: its update assigns {variable.path}, which is not "
        "among its variables: make it by add_variable in build(), and draw no random numbers"
    )


@contextmanager
def recorded_as_operators(
    optimizer: Any, branches: "Branches", is_scaled: bool = False
) -> Iterator[None]:
    """Context manager in which an optimizer calls operators that csrun records, in float32
    unscaled.
    """
    from keras.src.ops.core import Cond
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    kind = type(optimizer)
    with ExitStack() as stack:
        stack.enter_context(patch.object(Cond, "__call__", branches.called))
        if not is_scaled:
            stack.enter_context(patch.object(optimizer, "loss_scale_factor", None))
        for name in _FOREACH_METHODS:
            if getattr(kind, name).__module__.startswith("keras.src.backend."):
                stack.enter_context(patch.object(kind, name, getattr(BaseOptimizer, name)))
        yield


def require_free_folder(model: KerasModel) -> None:
    """Raises: UsageError for a layer whose variables have names of the optimizer's"""
    for variable in model.variables:
        if stored_name(variable).startswith(OPTIMIZER_FOLDER):
            raise UsageError(
                f"variable {variable.path}: the names below {OPTIMIZER_FOLDER} are those of the "
                "recorded optimizer's variables: rename the layer"
            )


def named_variables(variables: Sequence[Any], folder: str) -> dict[str, Any]:
    """Return variables of an optimizer by their names in a checkpoint, numbered if Keras repeats a
    name.
    """
    found: dict[str, Any] = {}
    for variable in variables:
        name = f"{folder}{variable.path.rpartition('/')[2]}"
        numbered = (f"{name}_{number}" for number in count(2))
        found[next(each for each in chain([name], numbered) if each not in found)] = variable
    return found


class WrittenScope(keras.StatelessScope):
    """Scope in which variables are these tensors, which assignments write."""

    def __init__(
        self,
        tensors: Sequence[tuple[Any, torch.Tensor]],
        refusal_of: Callable[[Any], UsageError],
    ) -> None:
        super().__init__()
        self._refusal_of = refusal_of
        self.state_mapping = {id(variable): tensor for variable, tensor in tensors}

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Copy an assigned value into the variable's tensor.

        Raises: UsageError for a variable without one
        """
        variable, value = update
        if id(variable) not in self.state_mapping:
            raise self._refusal_of(variable)
        self.state_mapping[id(variable)].copy_(value)


class Branches:
    """Branches that depend on a number of the step: both are recorded, and each tensor selects a
    value.
    """

    def __init__(self, recorder: StepRecorder, tensors: Sequence[torch.Tensor]) -> None:
        self._recorder = recorder
        self._tensors = [recorder.traced(tensor) for tensor in tensors]

    @property
    def called(self) -> Callable[..., Any]:
        """Return the method that calls the operator Cond, which keras.ops.cond also uses."""
        return lambda operator, *arguments, **options: self.select(*arguments, **options)

    def select(self, pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
        """Select between results. Source: keras.ops.cond"""
        if not isinstance(pred, TracedTensor):
            return true_fn() if pred else false_fn()
        before = self._values
        first = true_fn()
        taken = self._values
        for tensor, value in zip(self._tensors, before, strict=True):
            tensor.value = value
        second = false_fn()
        for tensor, value in zip(self._tensors, taken, strict=True):
            if tensor.value != value:
                chosen = torch.where(pred, self._recorder.trace_ref(value), tensor)
                tensor.value = self._recorder.traced(chosen).value
        if first is None:
            return None
        return tree_map(lambda x, y: torch.where(pred, x, y), first, second)

    @property
    def _values(self) -> list[Ref]:
        return [tensor.value for tensor in self._tensors]
