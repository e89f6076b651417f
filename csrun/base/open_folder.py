"""Folders that are held open while files are written into them.

An account that may write to a model_dir can replace a folder in it by a link at any time. Such a
folder is therefore opened without following links, and its files are accessed through the
descriptor, so nothing outside of it can be reached, whatever its owner.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.base.files import make_folder

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FOLDER = (errno.ENOTDIR, errno.ELOOP)  # open(2): the second of a link in some file systems


@contextmanager
def open_folder(folder: Path, *, make: bool = True) -> Iterator[Path]:
    """Open a folder, creating it if missing, and return a path through its descriptor.

    Errors on that path are reported with the folder's own path.

    Raises: UsageError for a link, or anything else that is not a folder; OSError
    Source: proc(5), /proc/pid/fd
    """
    descriptor = _opened(folder, make)
    # Through the descriptor: replacing the folder by a link from here on has no effect.
    place = Path(f"/proc/self/fd/{descriptor}")
    try:
        yield place
    except OSError as error:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        if name.startswith(f"{place}/"):
            error.filename = str(folder / Path(name).relative_to(place))
        raise
    finally:
        os.close(descriptor)


def _opened(folder: Path, make: bool) -> int:
    if make:
        make_folder(folder.parent)
        with suppress(FileExistsError):  # checked below
            make_folder(folder)
    try:
        return os.open(folder, _FLAGS)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            raise UsageError(
                f"{folder}: is not a folder; remove it, csrun creates a folder there"
            ) from error
        raise
