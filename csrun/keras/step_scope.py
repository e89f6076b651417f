"""Variables of a Keras model in its recorded step."""

from collections.abc import Callable, Sequence
from typing import Any

from csrun.base.errors import UsageError
from csrun.keras.torch_backend import keras
from csrun.pytorch.errors import user_line

_SEED = "seed_generator_state"  # of keras.random.SeedGenerator: csrun draws masks itself


class StepScope(keras.StatelessScope):
    """Scope of a step, in which variables are the given tensors, and others are constant.

    require_readable: raises an error for a variable that the step must not read now.
    states: variables that the step writes in place, and their tensors.

    Raises: UsageError for a write of a constant, or a read of a variable of the optimizer
    """

    def __init__(
        self,
        model: Any,
        tensors: Sequence[tuple[Any, Any]],
        require_readable: Callable[[Any], None] | None = None,
        states: Sequence[tuple[Any, Any]] = (),
    ) -> None:
        super().__init__(tensors, collect_losses=True)
        # Keras would convert them to the variables' types, such as the integers of step counts.
        self.state_mapping |= {id(variable): tensor for variable, tensor in states}
        self._model, self._require_readable = model, require_readable

    def get_current_value(self, variable: Any) -> Any:
        """Return the variable's value in the step."""
        optimizer = None if id(variable) in self.state_mapping else self._model.optimizer
        if optimizer is not None and any(variable is each for each in optimizer.variables):
            raise UsageError(
                f"{user_line()}: the step reads {variable.path} of the optimizer, which csrun "
                "updates: use a callback"
            )
        if self._require_readable is not None:
            self._require_readable(variable)
        return super().get_current_value(variable)

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Set the value of a variable in the step."""
        variable, _ = update
        if id(variable) in self.state_mapping:
            super().add_update(update)
        elif variable.name != _SEED and not self._is_of_compiled_loss(variable):
            raise UsageError(
                f"{user_line()}: the step assigns {variable.path}, which is constant in csrun: "
                "make it a float32 variable of the model, or have the model's `metrics` return "
                "the metric that it belongs to"
            )

    def _is_of_compiled_loss(self, variable: Any) -> bool:
        """Return whether a variable counts the losses of compile(), which the chief computes."""
        losses = self._model._compile_loss
        trackers = () if losses is None else losses.metrics
        return any(variable is each for tracker in trackers for each in tracker.variables)
