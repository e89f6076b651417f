"""The folder that a run writes into."""

import os
import tempfile
from pathlib import Path

from csrun.errors import UsageError


def prepare(model_dir: Path) -> None:
    """Make the folder if it is not there, and see that it can be written.

    Raises: UsageError when it cannot.
    """
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        descriptor, probe = tempfile.mkstemp(prefix=".probe-", dir=model_dir)
        os.close(descriptor)
        os.unlink(probe)
    except OSError as error:
        raise UsageError(
            f"model_dir {model_dir}: cannot be written: {error.strerror}; give another with "
            "--model_dir"
        ) from error
