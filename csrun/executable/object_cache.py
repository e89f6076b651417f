"""Cache of object files in a private folder of the account.

An object file is a function of the IR, the CPU and the builder. If an entry is missing or damaged,
or cannot be written, the process builds the object itself.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from csrun.base.errors import CsrunError
from csrun.base.files import find, make_private, write_atomic

MOST_BYTES = 64 << 20  # some 20,000 kernels; most have 2 to 4 KB
_SUFFIX = ".o"
_DIGEST_BYTES = hashlib.sha256().digest_size

log = logging.getLogger("csrun")


class ObjectCache:
    """Object files by the hash of their source; an entry starts with the hash of its content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._has_grown = False

    def built(self, source: str, build: Callable[[], bytes]) -> bytes:
        """Return the object file of a source, from the cache or else from `build`.

        Raises: the exceptions of `build`
        """
        path = self.folder / f"{hashlib.sha256(source.encode()).hexdigest()}{_SUFFIX}"
        try:
            make_private(self.folder)
        except (OSError, CsrunError):
            return build()
        if (image := _read(path)) is None:
            image = build()
            with suppress(OSError):  # full disk
                self._keep(path, image)
        return image

    def _keep(self, path: Path, image: bytes) -> None:
        write_atomic(path, hashlib.sha256(image).digest() + image, durable=False, mode=0o600)
        self._has_grown = True

    def trim(self) -> None:
        """Remove the least recently used entries above MOST_BYTES, if this process has added any.

        Without effect where another process removes them at the same time.
        """
        if self._has_grown:
            self._has_grown = False
            with suppress(OSError):
                self._remove_oldest()

    def _remove_oldest(self) -> None:
        entries = []
        with os.scandir(self.folder) as found:
            for each in found:
                if each.name.endswith(_SUFFIX):
                    with suppress(FileNotFoundError):  # removed by another process
                        entries.append((each, each.stat()))
        entries.sort(key=lambda entry: entry[1].st_mtime)  # least recently used first
        excess = sum(status.st_size for _, status in entries) - MOST_BYTES
        for entry, status in entries:
            if excess <= 0:
                return
            excess -= status.st_size
            with suppress(FileNotFoundError):
                os.unlink(entry.path)


def _read(path: Path) -> bytes | None:
    """Read an entry and mark it as used; None if it is missing or damaged."""
    with suppress(OSError):
        content = find(path, follow=False).data
        digest, image = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(image).digest() == digest:
            with suppress(OSError):  # in a folder that cannot be written
                os.utime(path)
            return image
        log.info(f"{path}: damaged, rebuilt")
    return None
