"""A compiled Keras model as a PyTorch module whose parameters and buffers are its variables."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import torch

from csrun.base.errors import UsageError
from csrun.keras.model_precision import require_float32_variables
from csrun.keras.torch_backend import keras

Array = npt.NDArray[Any]


class KerasModel:
    """A compiled Keras model. trained: its trainable variables; kept: float ones that layers write.

    Other variables, as the state of a dropout's seed, keep their values: csrun draws masks itself.
    """

    def __init__(self, model: Any) -> None:
        self.keras = model
        self.trained = list(model.trainable_variables)
        others = [v for v in model.non_trainable_variables if "float" in str(v.dtype)]
        self.kept = others
        self.module = _VariablesModule(self)
        _require_distinct(self.variables)

    @classmethod
    def of(cls, source: Any, params: Any, features: Any = None) -> "KerasModel":
        """The model, or that which a function returns.

        features: of a batch, for which a model is built that is not built yet

        Raises: UsageError for another type, or a model that is not compiled or not built
        """
        if not isinstance(source, keras.Model):
            if not callable(source):
                raise UsageError(
                    "KerasModelToCerebrasEstimator: model_fn must be a Keras model or a function "
                    f"that returns one, got {type(source).__name__}"
                )
            with _names_from_the_start():
                source = source(params) if inspect.signature(source).parameters else source()
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

    def values(self) -> dict[str, Array]:
        """Values of the variables by their names in a checkpoint."""
        return {stored_name(v): v.value.detach().cpu().numpy().copy() for v in self.variables}

    def assign(self, values: Mapping[str, Array]) -> None:
        """Set the variables."""
        for variable in self.variables:
            variable.assign(values[stored_name(variable)])


def stored_name(variable: Any) -> str:
    """A variable's name in a checkpoint: its path, below `model` where that has no layer."""
    path: str = variable.path
    return path if "/" in path else f"model/{path}"


class _VariablesModule(torch.nn.Module):
    """Variables as parameters and buffers of modules that are nested as their paths are."""

    def __init__(self, model: KerasModel) -> None:
        super().__init__()
        for variable in model.trained:
            parent, name = self._place(stored_name(variable))
            value = variable.value.detach().cpu().clone()
            parent.register_parameter(name, torch.nn.Parameter(value))
        for variable in model.kept:
            parent, name = self._place(stored_name(variable))
            parent.register_buffer(name, variable.value.detach().cpu().clone())

    def tensor(self, variable: Any) -> torch.Tensor:
        """The parameter or buffer of a variable."""
        parent, name = self._place(stored_name(variable))
        found: torch.Tensor = getattr(parent, name)
        return found

    def _place(self, path: str) -> tuple[torch.nn.Module, str]:
        *parts, name = path.split("/")
        place: torch.nn.Module = self
        for part in parts:
            if part not in place._modules:
                place.add_module(part, torch.nn.Module())
            place = place.get_submodule(part)
        return place, name


def _require_distinct(variables: list[Any]) -> None:
    """Raises: UsageError for two variables of one path"""
    paths = [variable.path for variable in variables]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(
                f"two variables of the Keras model are {path}: give layers other names"
            )


@contextmanager
def _names_from_the_start() -> Iterator[None]:
    """Number the names that Keras makes from the start, whatever was built in this process before.

    So a model has the same names in each run that it resumes in.
    """
    from keras.src.backend.common import global_state

    before = global_state.get_global_attribute("object_name_uids")
    global_state.set_global_attribute("object_name_uids", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("object_name_uids", before)
