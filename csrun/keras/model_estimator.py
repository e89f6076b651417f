"""KerasModelToCerebrasEstimator: training, evaluation and prediction of a compiled Keras model."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.compiler import CompileOptions
from csrun.context import use_torch_for_keras
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, train
from csrun.estimator.estimator import InputFunction
from csrun.estimator.micro_batches import AUTO
from csrun.estimator.model_trace import TracedModel
from csrun.estimator.run import EstimatorRun
from csrun.executable import RunMode
from csrun.keras.fit_arguments import (
    arrays_of,
    require_no_steps,
    require_supported,
    split_off,
    steps_of,
    validation_of,
)
from csrun.keras.fit_batches import FitData, has_batches, training_batches, validation_batches
from csrun.keras.fit_callbacks import callbacks_of
from csrun.keras.fit_history import History
from csrun.keras.fit_loop import FitLoop
from csrun.records import checkpoints
from csrun.runtime.wire.messages import Results

if TYPE_CHECKING:
    from csrun.keras.variables_module import KerasModel


class KerasModelToCerebrasEstimator(CerebrasEstimator):
    """An estimator of a Keras model, with the loss, optimizer and metrics of `compile()`.

    model_fn: a compiled Keras model, or a function that returns one. It is called with `params`,
        or with nothing if all its arguments have defaults and the first is not called `params`.
    model, keras_model: other names of model_fn.

    In a job only the chief calls a function, so that the other tasks do not import Keras. Weights
    are named by their Keras variables' paths. A training begins with the weights of the model, and
    sets them to the trained values at its end.

    Raises: UsageError unless there is exactly one model
    """

    def __init__(
        self,
        model_fn: Any = None,
        model_dir: str | Path = "model_dir",
        config: CSRunConfig | None = None,
        params: Any = None,
        *,
        model: Any = None,
        keras_model: Any = None,
    ) -> None:
        given = [each for each in (model_fn, model, keras_model) if each is not None]
        if len(given) != 1:
            raise UsageError(
                "KerasModelToCerebrasEstimator: give one of model_fn, model and keras_model, got "
                f"{len(given)}"
            )
        use_torch_for_keras()  # when it is imported, which the function may do
        super().__init__(given[0], model_dir, config, params)
        self._built: KerasModel | None = None
        self._last: int | None = None  # step of the training, if given
        self._start: Path | None = None  # checkpoint that the training begins with, if given
        self._loop: FitLoop | None = None  # of the fit in progress

    @property
    def keras_model(self) -> Any:
        """The Keras model."""
        return self._model().keras

    def train(
        self,
        input_fn: InputFunction,
        steps: int | None = None,
        max_steps: int | None = None,
        checkpoint_path: str | Path | None = None,
    ) -> Results:
        """Train on `input_fn(params)`, as the estimator of csrun.nn models does."""
        self._last, path = max_steps, None if checkpoint_path is None else Path(checkpoint_path)
        self._start = path if self._rerun is None else self._rerun.checkpoint_path(path)
        try:
            return super().train(input_fn, steps, max_steps, checkpoint_path)
        finally:
            self._start = None

    def train_and_evaluate(
        self,
        train_input_fn: InputFunction,
        eval_input_fn: InputFunction,
        max_steps: int | None,
        eval_steps: int | None = None,
    ) -> Results:
        """Train up to `max_steps`, and evaluate after each checkpoint."""
        self._last = max_steps
        return super().train_and_evaluate(train_input_fn, eval_input_fn, max_steps, eval_steps)

    def fit(
        self,
        x: Any,
        y: Any = None,
        batch_size: int = 32,
        epochs: int = 1,
        shuffle: bool = True,
        *,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
        validation_steps: int | None = None,
        steps_per_epoch: int | None = None,
        callbacks: Any = None,
        **others: Any,
    ) -> History:
        """Train for `epochs` epochs on arrays, without an incomplete last batch, or on an iterable
        of batches.

        validation_data: evaluated after each epoch, or those of validation_freq; the values have
            the prefix `val_`. Without them the last samples are, if validation_split is their
            share.
        validation_steps, steps_per_epoch: numbers of batches, if they are not those of the data.
        callbacks: one or several of Keras's, which the chief calls.
        others: further arguments of Keras, which are refused by name

        Raises: UsageError for an argument that is not supported
        """
        require_supported(others)
        given, validation = callbacks_of(callbacks), None
        if has_batches(x):
            of_arrays = {"y": y, "sample_weight": sample_weight, "class_weight": class_weight}
            of_arrays["validation_split"] = validation_split or None
            data = training_batches(x, steps_per_epoch, epochs, of_arrays)
        else:
            require_no_steps(steps_per_epoch, "steps_per_epoch")
            if validation_split and validation_data is None:
                weights = () if sample_weight is None else (sample_weight,)
                trained, validation_data = split_off(validation_split, (x, y, *weights))
                x, y, sample_weight = (*trained, None)[:3]
            arrays = arrays_of(x, y, sample_weight, class_weight)
            steps = steps_of(arrays, batch_size)
            make = partial(self._batches, arrays, batch_size, epochs, shuffle)
            data = FitData(make, steps)
        if has_batches(validation_data):
            validation = validation_batches(validation_data, validation_steps, validation_freq)
        elif validation_data is not None:
            require_no_steps(validation_steps, "validation_steps")
            config = self._config
            micro_batch = 1 if config.micro_batch_size == AUTO else config.micro_batch_size
            multiple = config.num_csx * micro_batch
            most = validation_batch_size or batch_size
            validation = validation_of(validation_data, most, validation_freq, multiple)
        loop = FitLoop(self._model, epochs, data.steps, given, validation)
        return self._run_fit(loop, data)

    def _batches(
        self, arrays: tuple[Any, ...], batch_size: int, epochs: int, shuffle: bool
    ) -> Dataset:
        samples = Dataset.from_arrays(*arrays)
        ordered = samples.shuffle(self._config.seed) if shuffle else samples
        return ordered.batch(batch_size, drop_remainder=True).repeat(epochs)

    def _run_fit(self, loop: FitLoop, data: FitData) -> History:
        """Run the loop of a fit."""

        def lead(run: EstimatorRun) -> Results:
            return train.train(run, None, self._last, self._start, loop)

        evaluated: list[InputFunction] = []
        if (validation := loop.validation) is not None:
            evaluated = [lambda params: validation.dataset]
        self._loop, self._last = loop, loop.epochs * loop.steps
        self._start = None if self._rerun is None else self._rerun.checkpoint_path(None)
        try:
            return History.of(self._run(lambda params: data.make(), RunMode.TRAIN, lead, evaluated))
        finally:
            self._loop = self._start = None

    def _run(
        self,
        input_fn: InputFunction,
        mode: RunMode,
        lead: Callable[[EstimatorRun], Results],
        others: Sequence[InputFunction] = (),
    ) -> Results:
        results = super()._run(input_fn, mode, lead, others)
        if mode is RunMode.TRAIN and not (self._loop is not None and self._loop.has_set_model):
            self._give_back()
        return results

    def _trace(self, dataset: Dataset, options: CompileOptions) -> TracedModel:
        from csrun.keras.torch_backend import require_keras

        require_keras()  # before the modules below import it
        from csrun.keras.step_recording import NO_FIT, FitTrace, example_of, trace_keras

        model = self._model(example_of(dataset)[0])
        start = checkpoints.latest(self._model_dir)
        if self._start is not None:
            with suppress(UsageError):  # it does not exist yet, in a compile before its training
                start = checkpoints.open_checkpoint(self._start)
        loop = self._loop
        fit = NO_FIT if loop is None else FitTrace(takes_metrics=True, rate_changes=loop.is_watched)
        return trace_keras(model, dataset, self._config, options, self._last, start, fit)

    def _model(self, features: Any = None) -> "KerasModel":
        """Return the model. features: of a batch, with which it is built if necessary."""
        if self._built is None:
            from csrun.keras.variables_module import KerasModel

            self._built = KerasModel.of(self._model_fn, self._params, features)
        return self._built

    def _give_back(self) -> None:
        """Set the model's weights to the newest checkpoint's, in the task that has built the
        model.
        """
        newest = checkpoints.latest(self._model_dir)
        if self._built is None or newest is None:
            return
        from csrun.keras.epoch_values import has_final_weights

        values = self._built.values()
        found = {name: np.empty_like(value) for name, value in values.items()}
        newest.take(found)
        self._built.assign(found, has_final_weights(newest))
