"""The frame of a run.py's main function."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from csrun.base.errors import CsrunError
from csrun.context import current
from csrun.estimator.config import CSRunConfig, Positive
from csrun.params.arguments import Arguments, parse

EXIT_INTERRUPTED = 128 + signal.SIGINT

P = TypeVar("P", bound=msgspec.Struct)


def run(main: Callable[[Arguments[P]], None], schema: type[P], default_params: Path) -> None:
    """Parse the command line into `schema`, then call `main`.

    A mistake of the user's ends the process with one line and its exit code, Ctrl-C with 130; of a
    task that has a role in a training, it is the launcher that shows it.
    """
    try:
        main(parse(schema, default_params, sys.argv[1:]))
    except CsrunError as error:
        if _has_role():
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        if _has_role():
            raise
        sys.exit(EXIT_INTERRUPTED)


def _has_role() -> bool:
    context = current()
    return context is not None and context.mode is not None


class RunConfig(CSRunConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the estimator is configured with, and how far the run goes.

    max_steps: the global step to train up to, whatever was trained before; steps: how many to train
    from where the model_dir stands; only one of the two is given. eval_steps: batches to evaluate,
    all of the data when absent.
    """

    model_dir: str = "model_dir"
    max_steps: Positive | None = None
    steps: Positive | None = None
    eval_steps: Positive | None = None
    checkpoint_path: str | None = None
