"""CerebrasEstimator: training, evaluation and prediction of a model function."""

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from csrun.advice.measurements import FeedRequest
from csrun.base.errors import UsageError
from csrun.base.half_formats import storage_format
from csrun.base.run_config import CSRunConfig
from csrun.compiler import CompileOptions
from csrun.context import (
    Preparation,
    Role,
    TaskContext,
    analysis_dir,
    current,
    preparation,
    rerun,
)
from csrun.data import Dataset, as_dataset
from csrun.data.sharding import seeded
from csrun.estimator import evaluate, prepare, roles, train
from csrun.estimator.compile_options import recorded
from csrun.estimator.input_report import InputReports
from csrun.estimator.model_trace import ModelFunction, TracedModel, trace_model
from csrun.estimator.run import EstimatorRun
from csrun.executable import RunMode
from csrun.records import checkpoints, log_lines
from csrun.runtime.step.results import StepResult
from csrun.runtime.wire import rendezvous
from csrun.runtime.wire.messages import Results

log = logging.getLogger("csrun")

InputFunction = Callable[[Any], Any]
Prediction = dict[str, npt.NDArray[Any]]


class CerebrasEstimator:
    """Training and evaluation of `model_fn(features, labels, mode, params)`.

    Every task of a job creates the same estimator and calls the same methods. Each call is a run,
    in which a task has its own role; all tasks get its results. Without a launcher, the run takes
    place in this process, on the CPU.

    If the launcher's command has compile_only or validate_only and the script does not handle them,
    its first run is compiled or validated instead, and the script ends there, without results.
    """

    def __init__(
        self,
        model_fn: ModelFunction,
        model_dir: str | Path = "model_dir",
        config: CSRunConfig | None = None,
        params: Any = None,
    ) -> None:
        log_lines.configure()
        self._model_fn = model_fn
        self._rerun = rerun()
        self._model_dir = Path(self._rerun.model_dir if self._rerun else model_dir)
        self._config = recorded(config or CSRunConfig(), self._rerun)
        self._params = params
        self._reports = InputReports()

    def train(
        self,
        input_fn: InputFunction,
        steps: int | None = None,
        max_steps: int | None = None,
        checkpoint_path: str | Path | None = None,
    ) -> Results:
        """Train on `input_fn(params)`: `steps` more, or up to global step `max_steps`.

        Resumes from the newest checkpoint in model_dir, or from the given one. Without a limit,
        training ends with the data.

        Raises: UsageError for both limits, or one below 1; CsrunError for a failure of model_dir,
        system, data or loss.
        """
        _require_positive("train", steps=steps, max_steps=max_steps)
        if steps is not None and max_steps is not None:
            raise UsageError("train: give steps or max_steps, not both")
        path = Path(checkpoint_path) if checkpoint_path is not None else None
        if self._rerun is not None:
            path = self._rerun.checkpoint_path(path)
        return self._run(
            input_fn,
            RunMode.TRAIN,
            lambda run: train.train(run, steps, max_steps, path),
        )

    def evaluate(
        self,
        input_fn: InputFunction,
        steps: int | None = None,
        checkpoint_path: str | Path | None = None,
    ) -> Results:
        """Return loss and metrics over `steps` batches of `input_fn(params)`, or all of them.

        Uses the newest checkpoint in model_dir, or the given one.

        Raises: UsageError without a checkpoint, or for `steps` below 1; CsrunError for a checkpoint
        of another model.
        """
        _require_positive("evaluate", steps=steps)
        path = Path(checkpoint_path) if checkpoint_path is not None else None
        return self._run(input_fn, RunMode.EVAL, lambda run: evaluate.evaluate(run, steps, path))

    def evaluate_all(self, input_fn: InputFunction, steps: int | None = None) -> list[Results]:
        """Evaluate every checkpoint in model_dir, oldest first.

        The chief lists them once, as a training may be running at the same time.

        Raises: as `evaluate`; CsrunError for a checkpoint that has been removed meanwhile.
        """
        _require_positive("evaluate_all", steps=steps)
        # Listed by the chief alone: a training may add one while tasks list, which then differ.
        names = list(self._distribute(self._kept))
        if not names:
            return [self.evaluate(input_fn, steps)]
        return [self.evaluate(input_fn, steps, self._model_dir / name) for name in names]

    def train_and_evaluate(
        self,
        train_input_fn: InputFunction,
        eval_input_fn: InputFunction,
        max_steps: int | None,
        eval_steps: int | None = None,
    ) -> Results:
        """Train up to global step `max_steps`, and evaluate after each checkpoint.

        Checkpoints are saved at multiples of save_checkpoints_steps, wherever the training resumes.
        Returns the last evaluation's results. Ends early with the training data.

        Raises: UsageError without max_steps; else as `train` and `evaluate`.
        """
        if max_steps is None:
            raise UsageError("train_and_eval: needs max_steps, got None")
        _require_positive("train_and_eval", max_steps=max_steps, eval_steps=eval_steps)
        evaluated: Results = {}
        while True:
            trained = self._run(
                train_input_fn,
                RunMode.TRAIN,
                lambda run: train.train_to_checkpoint(run, max_steps),
            )
            step = trained["global_step"]
            if step == evaluated.get("global_step"):  # the data had ended
                return evaluated
            evaluated = self.evaluate(eval_input_fn, eval_steps)
            if step >= max_steps or step % self._config.save_checkpoints_steps:
                return evaluated

    def predict(
        self,
        input_fn: InputFunction,
        steps: int | None = None,
        checkpoint_path: str | Path | None = None,
    ) -> list[Prediction]:
        """Return the predictions for each sample of `steps` batches of `input_fn(params)`, or all.

        Uses the newest checkpoint in model_dir, or the given one. In a job, the chief gets the
        predictions and the other tasks an empty list.

        Shapes: each prediction without its batch axis, or with the rows of its sample
        Raises: UsageError without a checkpoint, or for `steps` below 1; CsrunError for a checkpoint
        of another model.
        """
        _require_positive("predict", steps=steps)
        return self._predict(input_fn, lambda batch_size: steps, checkpoint_path)

    def _predict(
        self,
        input_fn: InputFunction,
        steps_of: Callable[[int], int | None],
        checkpoint_path: str | Path | None,
    ) -> list[Prediction]:
        """Predict. steps_of: returns the number of batches of this size; None for all."""
        path = Path(checkpoint_path) if checkpoint_path is not None else None
        found: list[Prediction] = []

        def take(result: StepResult) -> None:
            found.extend(map(result.of_sample, range(result.rows)))

        def lead(run: EstimatorRun) -> Results:
            steps = steps_of(run.dataset.element_spec()[0].shape[0])
            return evaluate.predict(run, steps, path, take)

        self._run(input_fn, RunMode.PREDICT, lead)
        return found

    def validate(self, input_fn: InputFunction, mode: RunMode = RunMode.TRAIN) -> Results:
        """Check that every operator of the model has a kernel; needs no system."""
        return self._run_role(input_fn, lambda run: prepare.validate_only(run, mode))

    def compile(self, input_fn: InputFunction, mode: RunMode = RunMode.TRAIN) -> Results:
        """Compile the model for `mode` into model_dir; needs no system."""
        return self._run_role(input_fn, lambda run: prepare.compile_only(run, mode))

    def _run(
        self,
        input_fn: InputFunction,
        mode: RunMode,
        lead: Callable[[EstimatorRun], Results],
        others: Sequence[InputFunction] = (),
    ) -> Results:
        """Run `lead`, or compile or validate instead if the launcher's command asks for it.

        others: input functions of further programs of the run.
        """
        only = preparation()
        if only is None:
            return self._run_role(input_fn, lead, others)

        def prepared(run: EstimatorRun) -> Results:
            compiles = only is Preparation.COMPILE_ONLY
            results = (prepare.compile_only if compiles else prepare.validate_only)(run, mode)
            prepare.log_prepared(only, mode)
            return results

        self._run_role(input_fn, prepared)
        sys.exit(0)

    def _run_role(
        self,
        input_fn: InputFunction,
        lead: Callable[[EstimatorRun], Results],
        others: Sequence[InputFunction] = (),
    ) -> Results:
        """Play this task's role in one run.

        A job that only feeds does so instead of its first run, repeating the data, and then ends.
        """
        analysis = analysis_dir()
        if analysis is None or (asked := FeedRequest.read(analysis)) is None:
            return self._part((input_fn, *others), lead)

        def endless(params: Any) -> Dataset:
            return as_dataset(input_fn(params)).repeat()

        self._part([endless], lambda run: prepare.feed(run, asked, analysis))
        sys.exit(0)

    def _part(
        self, input_fns: Sequence[InputFunction], lead: Callable[[EstimatorRun], Results]
    ) -> Results:
        with seeded(self._config.seed):
            return self._role(input_fns, lead)

    def _role(
        self, input_fns: Sequence[InputFunction], lead: Callable[[EstimatorRun], Results]
    ) -> Results:
        context = current()
        folder, role = roles.next_run_folder(context), roles.task_role(context)
        if context is None or folder is None or role is Role.CHIEF:
            return _run_as_chief(folder, lambda: lead(self._given(input_fns, context, folder)))
        streams = role is Role.STREAMER
        datasets = [as_dataset(make(self._params)) for make in input_fns] if streams else []
        return roles.serve(context, folder, datasets)

    def _given(
        self,
        input_fns: Sequence[InputFunction],
        context: TaskContext | None,
        folder: rendezvous.RunFolder | None,
    ) -> EstimatorRun:
        input_fn, *others = input_fns

        def make() -> Dataset:
            return as_dataset(input_fn(self._params))

        return EstimatorRun(
            self._trace,
            self._model_dir,
            self._config,
            self._params,
            context,
            folder,
            self._reports,
            make(),
            make,
            tuple(as_dataset(other(self._params)) for other in others),
        )

    def _trace(self, dataset: Dataset, options: CompileOptions) -> TracedModel:
        config = self._config
        storage = storage_format(config.precision, config.cb16_exponent_bias)
        how = config.arithmetic, options, storage
        return trace_model(self._model_fn, dataset, options.run_mode, self._params, *how)

    def _distribute(self, find: Callable[[], Results]) -> Results:
        """Distribute a value found by the chief to every task, as a run without a machine."""
        context = current()
        folder = roles.next_run_folder(context)
        if context is None or folder is None or roles.task_role(context) is Role.CHIEF:
            return _run_as_chief(folder, find)
        return rendezvous.await_results(folder, f"rank {context.rank}")

    def _kept(self) -> Results:
        """Names and steps of the checkpoints in model_dir, oldest first."""
        kept = checkpoints.kept_steps(self._model_dir)
        return {checkpoints.name_of(step): float(step) for step in kept}


def _run_as_chief(folder: rendezvous.RunFolder | None, lead: Callable[[], Results]) -> Results:
    """Play the chief's role in a run; the other tasks are sent its result or failure."""
    if folder is None:
        return lead()
    try:
        results = lead()
    except Exception as error:
        rendezvous.announce_failed(folder, error)
        raise
    rendezvous.announce_done(folder, results)
    return results


def _require_positive(method: str, **limits: int | None) -> None:
    for name, value in limits.items():
        if value is not None and value < 1:
            raise UsageError(f"{method}: {name} must be at least 1, got {value}")
