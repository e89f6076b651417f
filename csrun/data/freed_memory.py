"""Batches are made in the memory that earlier ones have left."""

import ctypes
from contextlib import suppress
from functools import cache

KEPT_BYTES = 256 << 20  # the largest array, and the most that stays free for the next one
LEAST_BYTES = 32 << 20  # what every glibc accepts; some refuse more

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3


@cache
def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to `KEPT_BYTES`, and make new arrays there.

    Without it the C library gives large arrays back to the kernel, and each batch of a `map` waits
    for new pages, which are filled with zeros first. Of another C library than glibc nothing is
    asked.

    Source: mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        if mallopt(MMAP_THRESHOLD, KEPT_BYTES) or mallopt(MMAP_THRESHOLD, LEAST_BYTES):
            mallopt(TRIM_THRESHOLD, KEPT_BYTES)
