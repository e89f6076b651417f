"""CerebrasEstimator: the user's handle on training and evaluation."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from csrun.advice.measurements import FeedRequest
from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.context import (
    Preparation,
    Role,
    TaskContext,
    analysis_dir,
    current,
    preparation,
)
from csrun.data import Dataset, as_dataset
from csrun.data.sharding import seeded
from csrun.estimator import evaluate, prepare, roles, train
from csrun.estimator.input_report import InputReports
from csrun.estimator.run import Run
from csrun.estimator.trace import ModelFunction
from csrun.executable import RunMode
from csrun.records import checkpoints, log_lines
from csrun.runtime.step.results import StepResult
from csrun.runtime.wire import rendezvous
from csrun.runtime.wire.messages import Results

log = logging.getLogger("csrun")

InputFunction = Callable[[Any], Any]
Prediction = dict[str, npt.NDArray[Any]]


class CerebrasEstimator:
    """Trains and evaluates `model_fn(features, labels, mode, params)`.

    Every task of a job makes the same estimator and calls the same methods; each call is a run, in
    which the task plays its own role. All tasks get the run's results. Without a launcher the run
    takes place in this process, on the CPU.

    Where a launcher's command says compile_only or validate_only, the first run of a script that
    does not read these words is compiled or validated instead, and the script ends there, as there
    are no results for it to go on with.
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
        self._model_dir = Path(model_dir)
        self._config = config or CSRunConfig()
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

        Resumes from the newest checkpoint in model_dir, or starts from the one given. With neither
        limit it ends with the data.

        Raises: UsageError for both limits at once, or one below 1; CsrunError for what goes wrong
        with model_dir, system, data or loss.
        """
        _require_positive("train", steps=steps, max_steps=max_steps)
        if steps is not None and max_steps is not None:
            raise UsageError("train: give steps or max_steps, not both")
        path = Path(checkpoint_path) if checkpoint_path is not None else None
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
        """Loss and host_call's metrics over `steps` batches of `input_fn(params)`, or all of them.

        Takes the newest checkpoint in model_dir, or the one given.

        Raises: UsageError without a checkpoint, or for `steps` below 1; CsrunError for a checkpoint
        of another model.
        """
        _require_positive("evaluate", steps=steps)
        path = Path(checkpoint_path) if checkpoint_path is not None else None
        return self._run(input_fn, RunMode.EVAL, lambda run: evaluate.evaluate(run, steps, path))

    def evaluate_all(self, input_fn: InputFunction, steps: int | None = None) -> list[Results]:
        """`evaluate` for every checkpoint that model_dir keeps, oldest first.

        Which these are is what the chief finds first: a training may go on beside it.

        Raises: as `evaluate`; CsrunError for a checkpoint that is gone when its turn comes.
        """
        _require_positive("evaluate_all", steps=steps)
        names = list(self._learn(self._kept))
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
        """Train up to global step `max_steps`, and evaluate after each checkpoint that is due.

        Checkpoints are due at multiples of save_checkpoints_steps, wherever the training resumes.
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
        """The model's predictions for each sample of `steps` batches of `input_fn(params)`, or all.

        Takes the newest checkpoint in model_dir, or the one given. In a job the chief gets the
        predictions, the other tasks an empty list.

        Shapes: each prediction without its batch axis, or with the sample's own rows of it
        Raises: UsageError without a checkpoint, or for `steps` below 1; CsrunError for a checkpoint
        of another model.
        """
        _require_positive("predict", steps=steps)
        path = Path(checkpoint_path) if checkpoint_path is not None else None
        found: list[Prediction] = []

        def take(result: StepResult) -> None:
            found.extend(map(result.of_sample, range(result.rows)))

        self._run(input_fn, RunMode.PREDICT, lambda run: evaluate.predict(run, steps, path, take))
        return found

    def validate(self, input_fn: InputFunction, mode: RunMode = RunMode.TRAIN) -> Results:
        """See whether every operator of the model has a kernel, and stop there; needs no system."""
        return self._play(input_fn, lambda run: prepare.validate_only(run, mode))

    def compile(self, input_fn: InputFunction, mode: RunMode = RunMode.TRAIN) -> Results:
        """Compile the model for `mode` and leave the artifacts in model_dir; needs no system."""
        return self._play(input_fn, lambda run: prepare.compile_only(run, mode))

    def _run(
        self, input_fn: InputFunction, mode: RunMode, lead: Callable[[Run], Results]
    ) -> Results:
        """A run that takes steps, or what the launcher's command asks for in its place."""
        only = preparation()
        if only is None:
            return self._play(input_fn, lead)

        def prepared(run: Run) -> Results:
            compiles = only is Preparation.COMPILE_ONLY
            results = (prepare.compile_only if compiles else prepare.validate_only)(run, mode)
            prepare.say_prepared(only, mode)
            return results

        self._play(input_fn, prepared)
        sys.exit(0)

    def _play(self, input_fn: InputFunction, lead: Callable[[Run], Results]) -> Results:
        """This task's part of one run.

        A job that is to feed only does that in the place of its first run, and then ends; data that
        end begin anew in it.
        """
        analysis = analysis_dir()
        if analysis is None or (asked := FeedRequest.read(analysis)) is None:
            return self._part(input_fn, lead)

        def endless(params: Any) -> Dataset:
            return as_dataset(input_fn(params)).repeat()

        self._part(endless, lambda run: prepare.feed(run, asked, analysis))
        sys.exit(0)

    def _part(self, input_fn: InputFunction, lead: Callable[[Run], Results]) -> Results:
        with seeded(self._config.seed):
            return self._role(input_fn, lead)

    def _role(self, input_fn: InputFunction, lead: Callable[[Run], Results]) -> Results:
        context = current()
        folder, role = roles.next_run(context), roles.role_in_training(context)
        if context is None or folder is None or role is Role.CHIEF:
            return _led(folder, lambda: lead(self._given(input_fn, context, folder)))
        streams = role is Role.STREAMER
        datasets = [as_dataset(input_fn(self._params))] if streams else []
        return roles.serve(context, folder, datasets)

    def _given(
        self,
        input_fn: InputFunction,
        context: TaskContext | None,
        folder: rendezvous.RunFolder | None,
    ) -> Run:
        def make() -> Dataset:
            return as_dataset(input_fn(self._params))

        return Run(
            self._model_fn,
            self._model_dir,
            self._config,
            self._params,
            context,
            folder,
            self._reports,
            make(),
            make,
        )

    def _learn(self, find: Callable[[], Results]) -> Results:
        """What the chief finds, in every task: a run that needs no machine."""
        context = current()
        folder = roles.next_run(context)
        if context is None or folder is None or roles.role_in_training(context) is Role.CHIEF:
            return _led(folder, find)
        return rendezvous.learn(folder, f"rank {context.rank}")

    def _kept(self) -> Results:
        """The names and steps of the checkpoints that model_dir keeps, oldest first."""
        kept = checkpoints.kept_steps(self._model_dir)
        return {checkpoints.name_of(step): float(step) for step in kept}


def _led(folder: rendezvous.RunFolder | None, lead: Callable[[], Results]) -> Results:
    """The chief's part of a run; the other tasks learn how it ended, either way."""
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
