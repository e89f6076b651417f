"""A compiled Keras model as a PyTorch module whose parameters and buffers are its variables."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from csrun.base.errors import UsageError
from csrun.keras.model_precision import require_float32_variables
from csrun.keras.torch_backend import keras

log = logging.getLogger("csrun")
Array = npt.NDArray[Any]


class KerasModel:
    """A compiled Keras model. trained: its trainable variables; kept: float variables that layers
    write.

    Other variables, such as the state of a dropout's seed, are constant: csrun draws masks itself.

    state: variables of its optimizer, by their names in a checkpoint, if the step writes them.
    """

    def __init__(self, model: Any) -> None:
        self.keras = model
        self.trained = list(model.trainable_variables)
        others = [v for v in model.non_trainable_variables if "float" in str(v.dtype)]
        self.kept = others
        self.state: dict[str, Any] = {}
        _require_distinct(self.variables)
        self.module = torch.nn.Module()
        self.hold_variables(self.module)

    @classmethod
    def of(cls, source: Any, params: Any, features: Any = None) -> "KerasModel":
        """Return the model, or the one that a function returns.

        features: of a batch, with which a model is built if necessary.

        Raises: UsageError for another type, or a model that is not compiled or not built
        """
        if not isinstance(source, keras.Model):
            if not callable(source):
                raise UsageError(
                    "KerasModelToCerebrasEstimator: model_fn must be a Keras model or a function "
                    f"that returns one, got {type(source).__name__}"
                )
            with _names_from_the_start():
                source = _called(source, params)
        if not isinstance(source, keras.Model):
            raise UsageError(f"model_fn must return a Keras model, got {type(source).__name__}")
        if not source.compiled:
            raise UsageError(
                f"Keras model {source.name!r} is not compiled: call "
                "model.compile(optimizer, loss, metrics) before"
            )
        if not source.built:
            if features is None:
                raise UsageError(
                    f"Keras model {source.name!r} has no weights yet: train it, or call it before"
                )
            source(features)
        require_float32_variables(source)
        return cls(source)

    @property
    def variables(self) -> list[Any]:
        """Trained and kept variables."""
        return [*self.trained, *self.kept]

    @property
    def named(self) -> dict[str, Any]:
        """Variables of the model and the recorded optimizer, by checkpoint name."""
        return {stored_name(v): v for v in self.variables} | self.state

    def hold_variables(self, module: torch.nn.Module) -> None:
        """Register copies of the variables in a module."""
        for variable in self.trained:
            value = torch.nn.Parameter(variable.value.detach().cpu().clone())
            hold_tensor(module, stored_name(variable), value)
        for variable in self.kept:
            hold_tensor(module, stored_name(variable), variable.value.detach().cpu().clone())

    def values(self) -> dict[str, Array]:
        """Return values of the variables by their names in a checkpoint."""
        found = {name: v.value.detach().cpu().numpy().copy() for name, v in self.named.items()}
        return {n: v if v.dtype.kind == "f" else v.astype(np.float32) for n, v in found.items()}

    def assign(self, values: Mapping[str, Array], are_final: bool = False) -> None:
        """Set the variables at the end of a training; with `use_ema` to their averages, unless the
        values are the final ones.
        """
        for name, variable in self.named.items():
            variable.assign(values[name])
        optimizer = self.keras.optimizer
        if self.state and not are_final:
            optimizer.finalize_variable_values(self.trained)
        if not optimizer.built:
            optimizer.build(self.trained)  # else a model that is saved now cannot be loaded whole


def _called(function: Callable[..., Any], params: Any) -> Any:
    """Call a function that builds a model; arguments with defaults are not `params`, unless the
    first one has this name.
    """
    arguments = list(inspect.signature(function).parameters.values())
    has_name = bool(arguments) and arguments[0].name == "params"
    takes_params = has_name or any(
        each.default is each.empty and each.kind is not each.VAR_KEYWORD for each in arguments
    )
    if takes_params:
        return function(params)
    if arguments and params is not None:
        log.warning(
            "model_fn %s is called without params, since all its arguments have defaults: name the "
            "first one params",
            getattr(function, "__name__", ""),
        )
    return function()


def stored_name(variable: Any) -> str:
    """Return a variable's name in a checkpoint: its path, below `model` if that has no layer."""
    path: str = variable.path
    return path if "/" in path else f"model/{path}"


def tensor_at(module: torch.nn.Module, name: str) -> torch.Tensor:
    """Return the parameter or buffer of a module by its name in a checkpoint."""
    parent, last = _place_of(module, name)
    found = parent._parameters.get(last, parent._buffers.get(last))
    assert found is not None, "it is held"
    return found


def hold_tensor(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Register a parameter or buffer by its name in a checkpoint."""
    parent, last = _place_of(module, name)
    # Not by register_parameter, which refuses names of a Module's methods, such as `float`.
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    (parent._parameters if is_parameter else parent._buffers)[last] = tensor


def _place_of(module: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    """Return the submodule with the tensor of a checkpoint name, and the tensor's name in it.

    Modules are nested like the paths of variables.
    """
    *parts, last = name.split("/")
    for part in parts:
        found = module._modules.setdefault(part, torch.nn.Module())
        assert found is not None, "a module"
        module = found
    return module, last


def _require_distinct(variables: list[Any]) -> None:
    """Raises: UsageError for two variables with one path"""
    paths = [variable.path for variable in variables]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(
                f"two variables of the Keras model are {path}: give layers other names"
            )


@contextmanager
def _names_from_the_start() -> Iterator[None]:
    """Restart the numbers in Keras's names, regardless of earlier models in this process.

    A model then has the same names in every run that resumes it.
    """
    from keras.src.backend.common import global_state

    before = global_state.get_global_attribute("object_name_uids")
    global_state.set_global_attribute("object_name_uids", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("object_name_uids", before)
