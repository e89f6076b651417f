"""Errors of a Keras step that csrun cannot record: the layer, the line, and alternatives."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from csrun.base.errors import UsageError
from csrun.compiler import CompileError, CompileOptions
from csrun.executable import RunMode
from csrun.keras.custom_step import code_of
from csrun.keras.torch_backend import keras
from csrun.pytorch.errors import CaptureError
from csrun.pytorch.record.recording import Recording

_STEPS = {
    RunMode.TRAIN: ("make_train_function",),
    RunMode.EVAL: ("make_test_function",),
    RunMode.PREDICT: ("make_predict_function",),
}


def require_plain_step(model: Any, mode: RunMode) -> None:
    """Raises: UsageError for a model that overrides its step, which csrun does not call"""
    for name in _STEPS[mode]:
        step = getattr(model, name)
        if step.__module__.split(".")[0] == "keras":
            continue
        code, kind = code_of(step), type(model).__name__
        raise UsageError(
            f"{code.co_filename}:{code.co_firstlineno}: {kind}.{name} is not called: "
            "csrun records call(), compute_loss() and the optimizer, and calls compute_metrics(): "
            "move what it computes there"
        )


@contextmanager
def named_layer() -> Iterator[None]:
    """Add the layer of a refused operator to the error.

    Raises: UsageError
    """
    try:
        yield
    except CaptureError as error:
        raise UsageError(f"layer {error.layer or 'model'}: {error}") from error


@contextmanager
def named_library_layer() -> Iterator[None]:
    """Name a layer of Keras that cannot be recorded; the error has the line of its call.

    Raises: UsageError
    """
    try:
        yield
    except CaptureError as error:
        layer = _innermost_layer(error)
        if layer is None or not type(layer).__module__.startswith("keras."):
            raise
        raise UsageError(
            f"layer {layer.path or layer.name}, a {type(layer).__name__}, cannot be recorded: "
            f"apply it to the data in the input_fn, or use another layer; {error}"
        ) from error


def _innermost_layer(error: BaseException) -> Any:
    """Return the layer whose code has raised an error; None for a model's."""
    found, entry = None, error.__traceback__
    while entry is not None:
        owner = entry.tb_frame.f_locals.get("self")
        if isinstance(owner, keras.layers.Layer):
            found = owner
        entry = entry.tb_next
    return None if isinstance(found, keras.Model) else found


@contextmanager
def named_missing_loss(model: Any) -> Iterator[None]:
    """Raises: UsageError for a model without a loss"""
    try:
        yield
    except ValueError as error:
        if "No loss to compute" not in str(error):
            raise
        raise UsageError(
            f"Keras model {model.name!r} has no loss: give compile() a loss, or override "
            "compute_loss()"
        ) from error


@contextmanager
def advice_on_statistics(model: Any, options: CompileOptions, samples: int) -> Iterator[None]:
    """Add alternatives to the error of a layer that needs statistics of the whole batch.

    samples: batch size

    Raises: UsageError
    """
    try:
        yield
    except CompileError as error:
        layers = {layer.path: layer for layer in model._flatten_layers(include_self=False)}
        if isinstance(layers.get(error.layer), keras.layers.BatchNormalization):
            advice = "use keras.layers.GroupNormalization or LayerNormalization"
            if (parts := options.parts) == options.micro_batches:
                advice += (
                    f", or batch_size {samples // parts} and gradient_accumulation_steps={parts} "
                    "in the optimizer, which takes the statistics of each batch"
                )
            raise UsageError(f"{error}; {advice}") from error
        raise


def require_no_draws(recording: Recording) -> None:
    """Raises: UsageError for a layer that draws random numbers by PyTorch"""
    leaf = next(iter(recording.script_leaves), None)
    if leaf is None:
        return
    scopes = (op.scope for op in recording.operators if leaf.value in op.operands)
    raise UsageError(
        f"layer {next(scopes, '') or 'model'}: {leaf.name}: it draws random numbers by PyTorch, "
        "whose generator does not run in a step: use keras.random, or have the input_fn give the "
        "numbers as a feature"
    )
