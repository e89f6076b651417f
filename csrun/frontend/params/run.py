"""The frame of a run.py's main function."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from csrun.context import current
from csrun.errors import CsrunError
from csrun.frontend.params.arguments import Arguments, parse

P = TypeVar("P", bound=msgspec.Struct)


def run(main: Callable[[Arguments[P]], None], schema: type[P], default_params: Path) -> None:
    """Parse the command line into `schema`, then call `main`.

    A mistake of the user's ends the process with one line and its exit code; under a launcher it
    is the launcher that shows it.
    """
    try:
        main(parse(schema, default_params, sys.argv[1:]))
    except CsrunError as error:
        if current() is not None:
            raise
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
