"""interleave: samples of several streamed files alternately."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from csrun.data.errors import DataError
from csrun.data.flow import CHUNK, Chunks, Item, Source
from csrun.data.formats.base import StreamedFormat
from csrun.data.input_operators import StageClock
from csrun.data.prefetch import prefetched

STAGE = "from_files"
READ_AHEAD = 2  # chunks read ahead per file


def interleaved(source: Source, cycle: int, block: int, threads: int) -> Source:
    """Interleave `cycle` files of a source, `threads` of them read ahead.

    Raises: DataError for anything but streamed files
    """
    if not isinstance(source, FileFlow):
        raise DataError(
            "interleave: must follow from_files of streamed files; use shuffle() to mix files of "
            "arrays"
        )
    return replace(source, cycle=cycle, block=block, threads=threads)


@dataclass(frozen=True)
class FileFlow:
    """Stream of the samples of files.

    cycle: number of files open at a time, read `block` samples each in rotation; a finished file is
    replaced by the next. threads: number of files read ahead, one thread each.
    """

    files: tuple[Path, ...]
    format: StreamedFormat
    cycle: int = 1
    block: int = CHUNK
    threads: int = 0

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Open a pass; the order is the same in every pass."""
        waiting = iter(self.files)
        slots = [self._read(path, k, clock) for k, path in enumerate(islice(waiting, self.cycle))]
        place = 0
        try:
            while slots:
                place %= len(slots)
                chunk = next(slots[place], None)
                if chunk is not None:
                    yield chunk
                    place += 1
                elif (path := next(waiting, None)) is not None:
                    slots[place] = self._read(path, place, clock)
                else:
                    del slots[place]
        finally:
            # Their threads end with them, and their files are closed.
            for chunks in slots:
                chunks.close()

    def _read(self, path: Path, place: int, clock: StageClock) -> Generator[list[Item]]:
        chunks = self._chunks(path, clock)
        return prefetched(chunks, READ_AHEAD) if place < self.threads else chunks

    def _chunks(self, path: Path, clock: StageClock) -> Generator[list[Item]]:
        samples, name, first = self.format.samples(path), str(path), 0
        while True:
            with clock.timed(STAGE):
                chunk: list[Item] = [
                    (((name, number),), sample)
                    for number, sample in enumerate(islice(samples, self.block), first)
                ]
            if not chunk:
                return
            yield chunk
            first += len(chunk)
