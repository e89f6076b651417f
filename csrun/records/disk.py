"""What a disk's refusal is to a user: one line with the path and a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from csrun.base.errors import CsrunError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Writing below `path`; works as a decorator, too.

    Raises: CsrunError for an OSError, a full disk for example
    """
    try:
        yield
    except OSError as error:
        raise CsrunError(
            f"{error.filename or path}: cannot be written: {error.strerror}; "
            "make room or choose another --model_dir"
        ) from error
