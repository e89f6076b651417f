"""Arguments of Keras's `fit`: data as csrun reads it, and those that are refused by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.base.errors import UsageError
from csrun.data import Dataset

Array = npt.NDArray[Any]

_LOOP = "call train(input_fn, max_steps=...) and evaluate() in a loop, and decide between them"
#: What there is in the place of a callback.
_INSTEAD_OF_CALLBACK = {
    "ModelCheckpoint": "set save_checkpoints_steps and keep_checkpoint_max in the config",
    "BackupAndRestore": "leave it out: a training resumes from its newest checkpoint",
    "LearningRateScheduler": "give the optimizer a keras.optimizers.schedules.LearningRateSchedule",
    "CSVLogger": "leave it out: the losses are in the log and in the events of model_dir",
    "TensorBoard": "leave it out: the losses are in the log and in the events of model_dir",
    "ProgbarLogger": "leave it out: log_steps in the config sets how often the loss is logged",
    "TerminateOnNaN": "leave it out: a loss that is not finite ends a training",
    "SwapEMAWeights": "leave it out: the model has the averages after the training",
}
#: What there is in the place of another argument.
_INSTEAD_OF_ARGUMENT = {
    "validation_split": "give validation_data",
    "steps_per_epoch": "call train(input_fn, steps=...)",
    "initial_epoch": "leave it out: a training resumes from its newest checkpoint",
}


def require_supported(callbacks: Any, others: Mapping[str, Any]) -> None:
    """Raises: UsageError for a callback, or another argument that csrun's `fit` does not have"""
    given = [callbacks] if hasattr(callbacks, "on_epoch_end") else [*(callbacks or ())]
    for callback in given:
        kind = type(callback).__name__
        raise UsageError(
            f"fit: callback {kind} is not called: {_INSTEAD_OF_CALLBACK.get(kind, _LOOP)}"
        )
    for name, value in others.items():
        if name != "verbose" and value is not None:
            instead = _INSTEAD_OF_ARGUMENT.get(name, "leave it out")
            raise UsageError(f"fit: {name} is not supported: {instead}")


def arrays_of(
    x: Any, y: Any, sample_weight: Any = None, class_weight: Mapping[int, float] | None = None
) -> tuple[Any, ...]:
    """Features, labels and, where they are given, the weights of samples.

    Source: keras.Model.fit: class_weight has the weights of labels, 1 for those that it lacks

    Raises: UsageError for both weights, or for labels that are no classes
    """
    if class_weight is None:
        return (x, y) if sample_weight is None else (x, y, sample_weight)
    if sample_weight is not None:
        raise UsageError("fit: give one of sample_weight and class_weight, not both")
    labels = _classes(y)
    weights = {int(label): float(weight) for label, weight in class_weight.items()}
    found = [weights.get(int(label), 1.0) for label in labels]
    return x, y, np.asarray(found, np.float32)


def _classes(y: Any) -> Array:
    """The class of each sample, from labels [B], [B, 1] or one-hot [B, C]."""
    if isinstance(y, Mapping | tuple | list):
        raise UsageError("fit: class_weight needs one array of labels: give sample_weight")
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] > 1:
        return np.asarray(labels.argmax(axis=1))
    if labels.size != len(labels):
        raise UsageError(
            f"fit: class_weight needs labels of shape [samples], got {list(labels.shape)}: give "
            "sample_weight"
        )
    return labels.reshape(-1)


def validation_batches(data: Sequence[Any], batch_size: int) -> Dataset:
    """All validation samples, in batches of one size, at most `batch_size`.

    data: features, labels and perhaps weights, as of `validation_data`

    Raises: UsageError for another form
    """
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise UsageError("fit: validation_data must be (x, y) or (x, y, sample_weight)")
    samples = _length(data[1])
    size = next(each for each in range(min(batch_size, samples), 0, -1) if samples % each == 0)
    return Dataset.from_arrays(*data).batch(size)


def _length(arrays: Any) -> int:
    """Samples of an array, or of a tuple or dict of arrays."""
    if isinstance(arrays, Mapping):
        return _length(tuple(arrays.values()))
    return _length(arrays[0]) if isinstance(arrays, tuple) else len(arrays)
