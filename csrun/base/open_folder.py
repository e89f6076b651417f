"""Folders held open while files are written into them.

Whoever may write a model_dir may put a link in the place of a folder in it, before we look or
after. So such a folder is opened without following links, and files are written through its
descriptor: nothing outside of it can be reached. Whose folder it is does not matter then.
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
    """A folder, made where there is none, as a path that leads through its descriptor.

    Errors that name a file by that path name it by the folder's.

    Raises: UsageError for a link, or anything else in its place; OSError
    Source: proc(5), /proc/pid/fd
    """
    descriptor = _opened(folder, make)
    # By the descriptor: a link that is put in the folder's place from here on changes nothing.
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
        with suppress(FileExistsError):  # what lies there is looked at below
            make_folder(folder)
    try:
        return os.open(folder, _FLAGS)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            raise UsageError(
                f"{folder}: is not a folder; remove it, csrun creates a folder there"
            ) from error
        raise
