"""Speed of a disk: large reads and writes that bypass the page cache, like fio's direct=1."""

import mmap
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

LENGTH, PIECE, ROUNDS = 1 << 30, 16 << 20, 3  # bytes of the file, and of a call


@dataclass(frozen=True)
class DiskRates:
    """Units: bytes per second"""

    read: float
    written: float


def disk_rates(folder: Path, length: int = LENGTH) -> DiskRates:
    """Medians over rounds of a file written from its front to its end, and read again."""
    path = folder / "rates"
    piece = mmap.mmap(-1, PIECE)  # direct I/O wants whole pages
    piece.write(os.urandom(PIECE))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    try:
        os.posix_fallocate(descriptor, 0, length)
        rounds = [
            (
                _rate(os.pwritev, descriptor, piece, length),
                _rate(os.preadv, descriptor, piece, length),
            )
            for _ in range(ROUNDS)
        ]
    finally:
        os.close(descriptor)
        path.unlink()
    written, read = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    return DiskRates(read, written)


def _rate(
    move: Callable[[int, list[mmap.mmap], int], int],
    descriptor: int,
    piece: mmap.mmap,
    length: int,
) -> float:
    began = perf_counter()
    for offset in range(0, length, PIECE):
        assert move(descriptor, [piece], offset) == PIECE
    os.fdatasync(descriptor)
    return length / (perf_counter() - began)
