"""Entry point of a run.py, and a default main function."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from csrun.base import streams
from csrun.base.errors import EXIT_INTERRUPTED, CsrunError, OutputError, UsageError
from csrun.base.mode import Mode
from csrun.base.run_config import Params
from csrun.context import current
from csrun.estimator import CerebrasEstimator
from csrun.estimator.estimator import InputFunction, Prediction
from csrun.estimator.model_trace import ModelFunction
from csrun.params.command_line import Arguments, DefaultParams, parse

Main = Callable[[Arguments[Any]], None]


class SchemaFound(BaseException):  # no `except Exception` of a script may stop it
    """Raised by `run` in place of a run where only a script's params are read."""

    def __init__(self, schema: type[Any], default_params: DefaultParams) -> None:
        super().__init__("the params of a script were asked for")
        self.schema, self.default_params = schema, default_params


_requests: list[bool] = []


@contextmanager
def schema_requested() -> Iterator[None]:
    """Have `run` raise SchemaFound in this block."""
    _requests.append(True)
    try:
        yield
    finally:
        _requests.pop()


def run(main: Main, schema: type[Any] = Params, default_params: DefaultParams = None) -> None:
    """Parse the command line into `schema`, then call `main`.

    default_params: params file, or its content, if there is no --params:
    `{"runconfig": {"max_steps": 300}}`.

    A user error ends the process with one line and its exit code, Ctrl-C with 130; for a task with
    a role in a training, the launcher shows the line. A full disk for the output is one line, too;
    a closed pipe (`| head`) ends it like SIGPIPE.
    """
    if _requests:
        raise SchemaFound(schema, default_params)
    try:
        main(parse(schema, default_params, sys.argv[1:]))
        streams.flush_output()
    except (CsrunError, KeyboardInterrupt, OSError) as error:
        code = None if _has_role() else _exit_code(error)
        if code is None:
            raise
        sys.exit(code)


def _exit_code(error: CsrunError | KeyboardInterrupt | OSError) -> int | None:
    """Print the line of a user error and return the exit code; None for a bug."""
    failed = streams.failed_output(error)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, OSError):
        if failed is None:
            return None
        error = failed
    if not isinstance(error, OutputError) or not error.is_unread:
        with suppress(OSError):
            print(f"error: {error}", file=sys.stderr)
    return error.exit_code


def _has_role() -> bool:
    context = current()
    return context is not None and context.mode is not None


def main_for(
    model_fn: ModelFunction | Callable[..., Any],
    train_input_fn: InputFunction,
    eval_input_fn: InputFunction | None = None,
    estimator_class: type[CerebrasEstimator] = CerebrasEstimator,
) -> Main:
    """Return a main function that runs --mode for one model.

    The params have a section `runconfig`, a `RunConfig`. Predictions are printed, one line per
    sample. estimator_class: `csrun.keras.KerasModelToCerebrasEstimator` for a Keras model
    """

    def main(arguments: Arguments[Any]) -> None:
        params, config = arguments.params, arguments.params.runconfig
        estimator = estimator_class(model_fn, config.model_dir, config, params)
        path = config.checkpoint_path
        match arguments.mode, eval_input_fn:
            case Mode.TRAIN, _:
                estimator.train(train_input_fn, config.steps, config.max_steps, path)
            case Mode.COMPILE_ONLY, _:
                estimator.compile(train_input_fn)
            case Mode.VALIDATE_ONLY, _:
                estimator.validate(train_input_fn)
            case mode, None:
                raise UsageError(f"--mode {mode}: this script passes no eval_input_fn to main_for")
            case Mode.EVAL, data:
                estimator.evaluate(data, config.eval_steps, path)
            case Mode.EVAL_ALL, data:
                estimator.evaluate_all(data, config.eval_steps)
            case Mode.TRAIN_AND_EVAL, data:
                estimator.train_and_evaluate(
                    train_input_fn, data, config.max_steps, config.eval_steps
                )
            case Mode.PREDICT, data:
                for number, sample in enumerate(estimator.predict(data, config.eval_steps, path)):
                    _show(f"sample {number}: {_text(sample)}")

    return main


def _show(line: str) -> None:
    try:
        print(line)
    except OSError as error:
        raise OutputError(error) from error


def _text(sample: Prediction) -> str:
    """Format a sample's predictions as one line, without the name of a single one."""
    if len(sample) == 1:
        return " ".join(str(*sample.values()).split())
    return ", ".join(f"{name} = {' '.join(str(value).split())}" for name, value in sample.items())
