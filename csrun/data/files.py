"""Which files a data set is made of, and their samples."""

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

OTHER_DESCRIPTORS = 512  # of sockets, rings, logs and libraries

Paths = str | Path | Sequence[str | Path]


def found(paths: Paths) -> tuple[Path, ...]:
    """The files that paths or patterns (`data/train-*.tfrecord`) name; a pattern's sorted by name.

    Raises: DataError for a path or pattern without a file
    """
    asked = [paths] if isinstance(paths, str | Path) else list(paths)
    files: list[Path] = []
    for path in map(str, asked):
        if Path(path).is_file():
            files.append(Path(path))
            continue
        matching = sorted(name for name in glob.glob(path, recursive=True) if Path(name).is_file())
        if not matching:
            rule = "no file matches" if glob.has_magic(path) else "no such file"
            raise DataError(f"from_files: {path}: {rule}, looked for from {Path.cwd()}")
        files += map(Path, matching)
    require(bool(files), "from_files", "at least one file is needed", "none")
    return tuple(files)


@dataclass(frozen=True)
class FileSet:
    """Files of one format."""

    paths: tuple[Path, ...]
    format: Format

    def shard(self, index: int, count: int) -> "FileSet":
        """Every `count`-th file, from `index` on.

        Raises: DataError for fewer files than shards
        """
        rule = f"{count} streamers need a file each at least: use fewer streamers, or split files"
        require(len(self.paths) >= count, "shard_files", rule, f"{len(self.paths)} files")
        return replace(self, paths=self.paths[index::count])

    def source(self) -> Source:
        """Their samples: by number where the files hold arrays, else in turn.

        Raises: DataError for files that are not alike, or without any sample
        """
        if isinstance(self.format, IndexedFormat):
            samples = self._samples()
            return Indexed(samples, Range(len(samples)))
        return FileFlow(self.paths, self.format)

    def _samples(self) -> ArraySamples | JoinedSamples:
        """The samples of files that hold arrays.

        Raises: DataError for files that are not alike, or without any sample
        """
        _let_open(len(self.paths))
        parts = [ArraySamples(self._arrays(path), STAGE, str(path)) for path in self.paths]
        filled = [part for part in parts if len(part)]
        count = f"{len(parts)} files without a sample"
        require(bool(filled), "from_files", "the data set must not be empty", count)
        return filled[0] if len(filled) == 1 else JoinedSamples(filled)

    def _arrays(self, path: Path) -> tuple[Column, ...]:
        assert isinstance(self.format, IndexedFormat)
        arrays = self.format.arrays(path)
        require_equally_long(f"from_files: {path}", arrays)
        return tuple(read_only(a) if isinstance(a, np.ndarray) else a for a in arrays)


def _let_open(files: int) -> None:
    """Raise this process's limit of descriptors, as far as it may: a mapped file keeps one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + OTHER_DESCRIPTORS
    if resource.RLIM_INFINITY != soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
