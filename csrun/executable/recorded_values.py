"""Values that a program records while it computes: what they are, and their files.

A file is that of one minibatch in one step, or of a group's update: a number of a value, then the
value, as NumPy's own format has them, in the order in which they were computed.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

if TYPE_CHECKING:
    from csrun.executable.bind import StepState
    from csrun.executable.plan import RecordedSteps

AnyArray = npt.NDArray[Any]

FOLDER = "values"  # in the compile directory
OF_TORCH = "torch"  # in FOLDER: the same values as PyTorch computes them
DONE = "done"  # marker file of complete recorded steps; or its text, the reason why they are not


class ValueRecorder:
    """Writer of the values of a program's recorded steps, into a folder of its compile directory.

    Any number of these may write: a step of a minibatch has a file of its own.
    """

    def __init__(self, directory: Path, recording: "RecordedSteps") -> None:
        self._folder = directory / FOLDER
        self._first, self._last = recording.first, recording.last

    def __call__(self, step: "StepState", number: int, value: AnyArray) -> None:
        """Record a value, as it is now, if the step is one of those."""
        global_step = step.index + 1
        if global_step < self._first:
            return
        self._folder.mkdir(exist_ok=True)
        if global_step > self._last:
            # Updates of a step may still run in the next one: not beyond it.
            if global_step > self._last + 1:
                (self._folder / DONE).touch()
            return
        name = f"{global_step}-{step.batch}-{step.first_sample}.values"
        # The first value of a step begins its file: the step may have run in an earlier attempt.
        with open(self._folder / name, "ab" if number else "wb") as file:
            _write(file, number, value)


def update_file(folder: Path, step: int, group: int) -> Path:
    """File of the values of a group's update."""
    return folder / f"update-{step}-{group}.values"


def write_values(path: Path, values: Iterable[tuple[int, AnyArray]]) -> None:
    """Write a file of values by number."""
    with open(path, "wb") as file:
        for number, value in values:
            _write(file, number, value)


def _write(file: BinaryIO, number: int, value: AnyArray) -> None:
    npy.write_array(file, np.array(number), allow_pickle=False)
    npy.write_array(file, np.asarray(value), allow_pickle=False)


class ValueFile(msgspec.Struct, frozen=True):
    """Values of a minibatch, or an update. offsets: in the file, by number; the last of equal ones.

    batch, first_sample: of a minibatch
    """

    path: Path
    offsets: dict[int, int]
    batch: int = 0
    first_sample: int = 0

    def read(self, number: int) -> AnyArray:
        """One value."""
        with open(self.path, "rb") as file:
            file.seek(self.offsets[number])
            value: AnyArray = npy.read_array(file, allow_pickle=False)
        return value


def value_files(folder: Path, step: int) -> list[ValueFile]:
    """Files of the minibatches of a step in a folder, in the order of batches and samples."""
    found = []
    for path in folder.glob(f"{step}-*.values"):
        _, batch, first_sample = map(int, path.stem.split("-"))
        found.append(ValueFile(path, dict(_offsets(path)), batch, first_sample))
    return sorted(found, key=lambda file: (file.batch, file.first_sample))


def update_files(folder: Path, step: int) -> list[ValueFile]:
    """Files of the updates of a step in a folder, each of a group."""
    paths = sorted(folder.glob(update_file(folder, step, 0).name.replace("-0.", "-*.")))
    return [ValueFile(path, dict(_offsets(path))) for path in paths]


def _offsets(path: Path) -> Iterator[tuple[int, int]]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        while file.tell() < size:
            number = int(npy.read_array(file, allow_pickle=False))
            offset = file.tell()
            yield number, offset
            npy.read_magic(file)
            shape, _, dtype = npy.read_array_header_1_0(file)
            file.seek(int(np.prod(shape)) * dtype.itemsize, 1)
