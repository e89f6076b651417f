"""Files of a data set, and their samples."""

import glob
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from csrun.data.errors import DataError, require
from csrun.data.flow import Source
from csrun.data.formats.base import Column, Format, IndexedFormat
from csrun.data.indexed import Indexed, Range
from csrun.data.ops.interleave import STAGE, FileFlow
from csrun.data.samples import ArraySamples, JoinedSamples, read_only, require_equally_long

OTHER_DESCRIPTORS = 512  # for sockets, rings, logs and libraries

Paths = str | Path | Sequence[str | Path]


def found(paths: Paths) -> tuple[Path, ...]:
    """Return the files of paths or patterns (`data/train-*.tfrecord`), sorted within a pattern.

    Raises: DataError for a path or pattern that matches no file
    """
    asked = [paths] if isinstance(paths, str | Path) else list(paths)
    files: list[Path] = []
    for path in map(str, asked):
        if Path(path).is_file():
            files.append(Path(path))
            continue
        # glob's order is the file system's; all streamers must have the same one.
        matching = sorted(name for name in glob.glob(path, recursive=True) if Path(name).is_file())
        if not matching:
            rule = "no file matches" if glob.has_magic(path) else "no such file"
            raise DataError(f"from_files: {path}: {rule} (working directory {Path.cwd()})")
        files += map(Path, matching)
    require(bool(files), "from_files", "at least one file is needed", "none")
    return tuple(files)


@dataclass(frozen=True)
class FileSet:
    """Files of one format."""

    paths: tuple[Path, ...]
    format: Format

    def shard(self, index: int, count: int) -> "FileSet":
        """Return every `count`-th file, from `index` on.

        Raises: DataError for fewer files than shards
        """
        rule = f"{count} streamers need at least one file each: use fewer streamers, or split files"
        require(len(self.paths) >= count, "shard_files", rule, f"{len(self.paths)} files")
        return replace(self, paths=self.paths[index::count])

    def source(self) -> Source:
        """Return their samples: indexed if the files hold arrays, else streamed.

        Raises: DataError for files of different structure, or without samples
        """
        if isinstance(self.format, IndexedFormat):
            samples = self._samples()
            return Indexed(samples, Range(len(samples)))
        return FileFlow(self.paths, self.format)

    def _samples(self) -> ArraySamples | JoinedSamples:
        """Return the samples of files of arrays.

        Raises: DataError for files of different structure, or without samples
        """
        _raise_file_limit(len(self.paths))
        parts = [ArraySamples(self._arrays(path), STAGE, str(path)) for path in self.paths]
        filled = [part for part in parts if len(part)]
        count = f"{len(parts)} files without samples"
        require(bool(filled), "from_files", "the data set must not be empty", count)
        return filled[0] if len(filled) == 1 else JoinedSamples(filled)

    def _arrays(self, path: Path) -> tuple[Column, ...]:
        assert isinstance(self.format, IndexedFormat)
        arrays = self.format.arrays(path)
        require_equally_long(f"from_files: {path}", arrays)
        return tuple(read_only(a) if isinstance(a, np.ndarray) else a for a in arrays)


def _raise_file_limit(files: int) -> None:
    """Raise the limit of open files as far as possible, as a mapped file keeps a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + OTHER_DESCRIPTORS
    if resource.RLIM_INFINITY != soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
