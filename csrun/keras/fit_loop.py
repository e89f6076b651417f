"""Loop of a fit: epochs on one machine, each followed by an evaluation and calls of callbacks."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from csrun.base.errors import UsageError
from csrun.data import Dataset
from csrun.estimator.compilation import Compiled, compile_run
from csrun.estimator.evaluate import write_events
from csrun.estimator.model_trace import TracedModel
from csrun.estimator.run import EstimatorRun
from csrun.estimator.target import Target
from csrun.estimator.train import LoadedTraining, TrainingLoop
from csrun.executable import MOST_STEPS, RunMode
from csrun.executable.arrays import Array
from csrun.keras.fit_callbacks import called, ends_on_nan, log_not_called, needs_batches
from csrun.keras.fit_history import numbers_of, results_of
from csrun.records import log_lines
from csrun.records.checkpoints import Checkpoint
from csrun.runtime.chief.machine import Feed, Program
from csrun.runtime.chief.training.step_orders import NotFiniteLossError, evaluate
from csrun.runtime.wire.messages import Results

if TYPE_CHECKING:
    from csrun.keras.host_metrics import FitMetrics
    from csrun.keras.variables_module import KerasModel

log = logging.getLogger("csrun")


@dataclass(frozen=True)
class Validation:
    """Validation data of a fit. batches: their number; frequency: as Keras's validation_freq."""

    dataset: Dataset
    batches: int
    frequency: int | Sequence[int] = 1

    def is_due(self, epoch: int) -> bool:
        """Return whether epoch `epoch`, from 0, ends with an evaluation."""
        if isinstance(self.frequency, int):
            return (epoch + 1) % self.frequency == 0
        return epoch + 1 in self.frequency


@dataclass
class FitLoop(TrainingLoop):
    """Loop of `fit`, which Keras's callbacks end and change as in Keras.

    model: returns the model; in the chief only.
    epochs, steps: epochs, and steps of each.
    """

    model: Callable[[], "KerasModel"]
    epochs: int
    steps: int
    callbacks: Sequence[Any] = ()
    validation: Validation | None = None
    _evaluation: Compiled | None = field(default=None, init=False)
    _fit: "_RunningFit | None" = field(default=None, init=False)
    _folder: Path = field(default=Path(), init=False)

    limit = "epochs"
    saves_due = False  # after the callbacks of an epoch instead

    @property
    def is_watched(self) -> bool:
        """Return whether callbacks may read or change the model and its learning rate."""
        return bool(called(self.callbacks))

    def prepare(self, run: EstimatorRun, target: Target) -> None:
        """Compile the evaluation of the validation data."""
        if (given := self.validation) is not None:
            evaluation = replace(run, dataset=given.dataset, make=lambda: given.dataset, others=())
            self._evaluation = compile_run(evaluation, RunMode.EVAL, target, given.batches)
        self._folder = run.model_dir

    def host_call(self, traced: TracedModel) -> None:
        """None: the loop takes the metrics of every step itself."""

    @property
    def has_set_model(self) -> bool:
        """Return whether the fit has run, and the model has the values that callbacks saw last."""
        return self._fit is not None and self.is_watched

    def is_unfinished_at(self, last: Checkpoint) -> bool:
        """Return whether the run stopped between the last step and the end of its epoch."""
        from csrun.keras.epoch_values import is_open_in

        return is_open_in(last) and last.step == self.epochs * self.steps

    def after_steps(self, first: int, count: int) -> None:
        """Add the steps to the values of their epoch, and call the callbacks of batches."""
        assert self._fit is not None, "it runs"
        self._fit.after_steps(first, count)

    def extra_tensors(self, step: int) -> Mapping[str, Array]:
        """Tensors of the open epoch, and of the learning rate if it is a number of each step."""
        return {} if self._fit is None else self._fit.tensors()

    def run(self, loaded: LoadedTraining) -> Results:
        """Train and evaluate epoch by epoch; the results have the values of each."""
        program, compiled, given = None, self._evaluation, self.validation
        if given is not None:
            assert compiled is not None, "prepared"
            program = loaded.machine.load(compiled.executable, Feed(given.dataset, number=1))
        evaluation = None if compiled is None else compiled.traced
        self._fit = _RunningFit(self, loaded, program, evaluation)
        with loaded.training:
            return self._fit.run()

    def write_events(self, results: Results) -> None:
        """Write the events of an evaluation."""
        write_events(self._folder, results)


class _RunningFit:
    """State of a fit on a loaded machine.

    has_numbers: the learning rate is passed with each step. first_rate: the one that the optimizer
    had before callbacks changed it, in a resumed fit before it began.
    """

    def __init__(
        self,
        loop: FitLoop,
        loaded: LoadedTraining,
        program: Program | None,
        evaluation: TracedModel | None,
    ) -> None:
        from csrun.keras.epoch_values import EpochValues, is_open_in
        from csrun.keras.model_precision import unscaled
        from csrun.keras.optimizer_rules import rates_of
        from csrun.keras.torch_backend import keras

        self._loop, self._loaded, self._training = loop, loaded, loaded.training
        self._program, self._evaluation = program, evaluation
        self._model = loop.model()
        self._optimizer, _ = unscaled(self._model.keras.optimizer)
        if not self._optimizer.built:
            self._optimizer.build(self._model.trained)  # else a saved model cannot be loaded whole
        log_not_called(loop.callbacks)
        callbacks = called(loop.callbacks)
        self._is_watched = loop.is_watched
        self._by_batch = any(map(needs_batches, callbacks))
        self._ends_on_nan = any(map(ends_on_nan, callbacks))
        # Called last: the logs then have what callbacks have added.
        last = keras.callbacks.LambdaCallback(on_epoch_end=self._keep_logs)
        self._callbacks = keras.callbacks.CallbackList(
            [*callbacks, last],
            add_history=True,
            model=self._model.keras,
            epochs=loop.epochs,
            steps=loop.steps,
            verbose=0,
        )
        self._passes = 0
        self._has_final_weights = False  # set by callbacks at the end of the fit
        self._values = Results()  # of all epochs
        self._epoch = EpochValues(loaded.traced.host)  # type: ignore[arg-type]
        found = loaded.found
        self._resumes_epoch = found is not None and is_open_in(found)
        if found is not None and self._resumes_epoch:
            self._epoch.restore(found)
        self.has_numbers = loaded.machine.plan.store.numbers > 0
        if self.has_numbers:
            self._optimizer.learning_rate, self.first_rate = rates_of(self.rate, found)

    @property
    def rate(self) -> float:
        """Learning rate of the next step.

        Raises: UsageError for a rate that is no longer a number
        """
        found = self._optimizer._learning_rate
        if callable(found):
            raise UsageError(
                "fit: a callback has set optimizer.learning_rate to a schedule: give the schedule "
                "to the optimizer, or set a number"
            )
        return float(found)

    def tensors(self) -> Mapping[str, Array]:
        """Tensors of a checkpoint: of the open epoch, the rate if it is passed, and the end."""
        from csrun.keras.epoch_values import FINAL_TENSOR
        from csrun.keras.optimizer_rules import RATE_TENSOR

        found = dict(self._epoch.tensors())
        if self._has_final_weights:
            found[FINAL_TENSOR] = np.ones(1, np.int64)
        if self.has_numbers:
            found[RATE_TENSOR] = np.array([self.rate, self.first_rate]).view(np.int64)
        return found

    def run(self) -> Results:
        """Train epoch by epoch; return the results of the run, with the values of each epoch."""
        model, training, steps = self._model.keras, self._training, self._loop.steps
        model.stop_training, logs = False, {}
        self._give_weights()
        with self._apply_changes():
            self._callbacks.on_train_begin()
        first = (training.step - self._resumes_epoch) // steps
        for epoch in range(first, self._loop.epochs):
            end = (epoch + 1) * steps
            self._begin(epoch, is_resumed=self._resumes_epoch and epoch == first)
            first_step = training.step
            logs = self._trained(end)
            self._give_weights()
            if training.step < end and not model.stop_training:
                break  # the data have ended
            self._end(epoch, logs)
            if first_step == end:
                training.forget_checkpoint()  # which was written before the epoch's end
            training.save_due()
            if model.stop_training:
                break
        if self._is_watched:  # as in Keras, before callbacks restore the best weights
            model.optimizer.finalize_variable_values(self._model.trained)
        with self._apply_changes() as changed:
            self._callbacks.on_train_end(logs)
        self._has_final_weights = bool(changed)
        return {**training.finish(), **self._values}

    def _begin(self, epoch: int, is_resumed: bool) -> None:
        """Begin an epoch; a resumed one has what callbacks have changed at its first beginning."""
        if not is_resumed:
            self._epoch.begin()
            with self._apply_changes():
                self._callbacks.on_epoch_begin(epoch)
            return
        rate = self._optimizer._learning_rate
        number = None if callable(rate) else float(rate)
        self._callbacks.on_epoch_begin(epoch)
        self._give_weights()
        if number is not None:
            self._optimizer.learning_rate = number

    def _end(self, epoch: int, logs: dict[str, Any]) -> None:
        """End an epoch with its evaluation and callbacks, which get its `logs`."""
        validation = self._loop.validation
        if validation is not None and validation.is_due(epoch) and np.isfinite(logs["loss"]):
            logs |= self._validated(validation)
        with self._apply_changes():
            self._callbacks.on_epoch_end(epoch, logs)
        self._epoch.is_open = False

    def _keep_logs(self, epoch: int, logs: Mapping[str, Any]) -> None:
        numbers = numbers_of(logs)
        self._values |= results_of(epoch, numbers)
        log.info(log_lines.epoch_finished(epoch, self._loop.epochs, numbers))

    # Steps.

    def _trained(self, end: int) -> dict[str, Any]:
        """Compute the steps of an epoch before step `end`; return its loss and metrics."""
        training, steps = self._training, self._loop.steps
        while training.step < end and not training.is_over:
            number = training.step % steps
            if self._by_batch:
                with self._apply_changes():
                    self._callbacks.on_train_batch_begin(number)
            self._run_steps(1 if self._by_batch else min(end - training.step, MOST_STEPS))
            if self._model.keras.stop_training:
                break
            if training.step < end:
                training.save_due()
        logs = self._epoch.logs()
        for name, value in logs.items():
            if name != "loss" and isinstance(value, float):
                training.record.summarize(name, value, training.step)
        return logs

    def _end_batch(self, number: int) -> None:
        self._give_weights()
        with self._apply_changes():
            self._callbacks.on_train_batch_end(number, self._epoch.logs())

    def _run_steps(self, count: int) -> None:
        """Compute up to `count` steps; a loss that is not finite is passed to a callback for it.

        Raises: NotFiniteLossError without such a callback
        """
        training, numbers = self._training, [[self.rate] if self.has_numbers else []] * count
        try:
            training.finish_order(training.order(numbers, keeps_all=self._epoch.takes_results))
        except NotFiniteLossError as error:
            if not self._ends_on_nan:
                raise
            self._epoch.add_loss(error.loss)
            self._end_batch(training.step % self._loop.steps)

    def after_steps(self, first: int, count: int) -> None:
        """Add steps to the values of the epoch.

        With callbacks of batches, call `on_train_batch_end` before a pending signal is handled.
        """
        machine = self._loaded.machine
        for slot, loss in enumerate(machine.losses(count)):
            self._epoch.add_loss(loss)
            if self._epoch.takes_results:
                self._epoch.take(machine.result(slot, first + slot))
        if self._by_batch and count:
            self._end_batch(first % self._loop.steps)

    # Evaluations.

    def _validated(self, validation: Validation) -> dict[str, Any]:
        """Return the results of an evaluation, with the prefix of Keras."""
        program, traced, step = self._program, self._evaluation, self._training.step
        assert program is not None, "loaded"
        assert traced is not None, "compiled"
        if self._passes:
            program.begin()
        self._passes += 1
        with self._apply_changes():
            self._callbacks.on_test_begin()
        self._training.require_replaced()
        host: FitMetrics | None = traced.host  # type: ignore[assignment]
        show, losses = self._loaded.show, traced.losses
        try:
            results = evaluate(program, step, validation.batches, host, show, losses)
            logs = {**results, **({} if host is None else host.latest)}
        except NotFiniteLossError as error:
            log.warning(f"fit: validation after step {step}: {error}")
            names = [name for each in (host, losses) if each for name in each.values()]
            logs = {**dict.fromkeys(names, float("nan")), "loss": error.loss}
            results = {"global_step": float(step), "loss": error.loss}
        self._loop.write_events(results)
        logs.pop("global_step", None)
        with self._apply_changes():
            self._callbacks.on_test_end(logs)
        return _validation_logs(logs, {} if host is None else host.outer)

    # The model's variables, which callbacks read and change.

    def _give_weights(self) -> None:
        """Set the model's variables to the state of the machine, if a callback may read them."""
        if not self._is_watched:
            return
        state = self._loaded.machine.state
        for name, variable in self._model.named.items():
            variable.assign(np.array(state[name]))

    @contextmanager
    def _apply_changes(self) -> Iterator[dict[str, Array]]:
        """Context manager that applies callbacks' changes on exit; yields a dict that then holds
        them.
        """
        variables = self._model.named.items() if self._is_watched else ()
        before = {name: _version(variable) for name, variable in variables}
        had_number, changed = not callable(self._optimizer._learning_rate), dict[str, Array]()
        yield changed
        if had_number and self._is_watched:
            _ = self.rate  # refuses a schedule
        changed |= {
            name: variable.value.detach().cpu().numpy().astype(np.float32)
            for name, variable in variables
            if _version(variable) != before[name]
        }
        if changed:
            self._training.replace(changed)


def _validation_logs(values: Mapping[str, Any], outer: Mapping[str, str]) -> dict[str, Any]:
    """Return values of an evaluation as Keras logs them in a fit: a nested dict's name has the
    prefix, so that the names in it have none.

    outer: as of csrun.keras.custom_step.ReturnedValues
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in outer:
            found.setdefault(f"val_{outer[name]}", {})[name] = value
        else:
            found[f"val_{name}"] = value
    return found


def _version(variable: Any) -> tuple[int, int]:
    """Return a number that an assignment to the variable changes."""
    tensor = variable.value
    return id(tensor), tensor._version
