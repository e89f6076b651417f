"""Files and links that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from csrun.base.errors import CsrunError


def write_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a small file through a temporary one beside it.

    durable: on disk, with its folder's entry, when this returns. Without it the file does not
    outlast a crash of the machine, and costs no wait for the disk.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def replace_link(link: Path, target: Path) -> None:
    """Make a symbolic link in the place of whatever file or link is there, in one go."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        temporary.symlink_to(target)
        temporary.replace(link)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
            "make room or choose another model_dir"
        ) from error
