"""Values that a program records while it computes, and their files.

A file has the values of one minibatch of one step, or of the update of a group, in the order in
which they were computed. Each value's number is followed by the value; both are in NumPy's format.
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
OF_TORCH = "torch"  # in FOLDER: the same values computed by PyTorch
# marker file of complete recorded steps; or, if they are incomplete, a file with the reason
DONE = "done"


class ValueRecorder:
    """Writer of the values of a program's recorded steps, in a folder of its compile directory.

    Several instances may write at once; a file belongs to one step and minibatch.
    """

    def __init__(self, directory: Path, recording: "RecordedSteps") -> None:
        self._folder = directory / FOLDER
        self._first, self._last = recording.first, recording.last

    def __call__(self, step: "StepState", number: int, value: AnyArray) -> None:
        """Record a value if the current step is recorded."""
        global_step = step.index + 1
        if global_step < self._first:
            return
        self._folder.mkdir(exist_ok=True)
        if global_step > self._last:
            # Updates of a step may still run in the next one, but not after it.
            if global_step > self._last + 1:
                (self._folder / DONE).touch()
            return
        name = f"{global_step}-{step.batch}-{step.first_sample}.values"
        # The step's first value starts its file, since an earlier attempt may have run the step.
        with open(self._folder / name, "ab" if number else "wb") as file:
            _write(file, number, value)


def update_file(folder: Path, step: int, group: int) -> Path:
    """Return the file of the values of a group's update."""
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
    """Values of a minibatch, or of an update.

    offsets: positions in the file, by the values' numbers; of equal numbers the last.
    batch, first_sample: position of a minibatch in its step.
    """

    path: Path
    offsets: dict[int, int]
    batch: int = 0
    first_sample: int = 0

    def read(self, number: int) -> AnyArray:
        """Read one value."""
        with open(self.path, "rb") as file:
            file.seek(self.offsets[number])
            value: AnyArray = npy.read_array(file, allow_pickle=False)
        return value


def value_files(folder: Path, step: int) -> list[ValueFile]:
    """Return the files of a step's minibatches in a folder, sorted by batch and sample."""
    found = []
    for path in folder.glob(f"{step}-*.values"):
        _, batch, first_sample = map(int, path.stem.split("-"))
        found.append(ValueFile(path, dict(_offsets(path)), batch, first_sample))
    return sorted(found, key=lambda file: (file.batch, file.first_sample))


def update_files(folder: Path, step: int) -> list[ValueFile]:
    """Return the files of a step's updates in a folder, one per group."""
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
