"""Cache of objects in a folder of the account, which no other account may write.

An object is a function of the IR, the CPU and the builder. A missing or damaged entry, or one that
cannot be written, is built by the process that needs it.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from csrun.base.errors import CsrunError
from csrun.base.files import find, make_private, write_whole

MOST_BYTES = 64 << 20  # some thousands of programs; common.o has 60 KB
_SUFFIX = ".o"
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class ObjectCache:
    """Objects by the hash of what they are built from, each after the hash of itself."""

    folder: Path

    def built(self, source: str, build: Callable[[], bytes]) -> bytes:
        """The object of a source, which `build` makes where it is not there.

        Raises: what `build` raises
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
        write_whole(path, hashlib.sha256(image).digest() + image, durable=False, mode=0o600)
        with os.scandir(self.folder) as found:
            entries = [(each, each.stat()) for each in found if each.name.endswith(_SUFFIX)]
        entries.sort(key=lambda entry: entry[1].st_mtime)  # least recently used first
        excess = sum(status.st_size for _, status in entries) - MOST_BYTES
        for entry, status in entries:
            if excess <= 0:
                return
            excess -= status.st_size
            os.unlink(entry.path)


def _read(path: Path) -> bytes | None:
    """The object of an entry, which is marked as used; None if it is missing or damaged."""
    with suppress(OSError):
        content = find(path, follow=False).data
        digest, image = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(image).digest() == digest:
            os.utime(path)
            return image
    return None
