"""IDX files, the format of MNIST."""

from dataclasses import dataclass
from pathlib import Path

from csrun.data import idx
from csrun.data.errors import require
from csrun.data.formats.base import Array


@dataclass(frozen=True)
class Idx:
    """An IDX file, gzip-packed or not: one array; within a job it is decoded once."""

    def arrays(self, path: Path) -> tuple[Array, ...]:
        """The array in the file.

        Raises: DataError for a file that is missing, or not what its header says
        """
        array = idx.read(path)
        require(array.ndim > 0, str(path), "samples need a first axis", "a single number")
        return (array,)
