"""Shared memory without a name: memfd, passed from process to process as a descriptor."""

import mmap
import os
from contextlib import suppress

import numpy as np
import psutil

from csrun.base.errors import CsrunError
from csrun.executable.bind import Bytes


class SharedMemory:
    """A block of memory that another process can map; it is gone when the last of them is.

    Shapes: bytes uint8[nbytes], zero at first
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, max(nbytes, 1))
        self.bytes: Bytes = np.frombuffer(self._map, dtype=np.uint8, count=nbytes)

    @staticmethod
    def create(name: str, nbytes: int) -> "SharedMemory":
        """New memory; `name` is only seen in /proc.

        Raises: CsrunError when the machine does not have as much.
        """
        available = psutil.virtual_memory().available
        if nbytes > available:
            raise CsrunError(f"{name} needs {nbytes:,} bytes of memory, {available:,} are free")
        descriptor = os.memfd_create(f"csrun-{name}", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, max(nbytes, 1))
            return SharedMemory(descriptor, nbytes)
        except OSError as error:
            os.close(descriptor)
            raise CsrunError(f"{name} needs {nbytes:,} bytes of memory: {error}") from error

    @staticmethod
    def attach(descriptor: int) -> "SharedMemory":
        """Map memory that came over a channel; takes the descriptor over."""
        return SharedMemory(descriptor, os.fstat(descriptor).st_size)

    def close(self) -> None:
        """Close the descriptor; the mapping lives as long as arrays over it do."""
        os.close(self.descriptor)
        del self.bytes
        with suppress(BufferError):  # somebody's array still looks at it
            self._map.close()
