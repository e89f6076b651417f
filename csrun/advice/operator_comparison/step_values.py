"""Recorded values of one step, combined from its minibatches and systems."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from csrun.advice.operator_comparison.value_difference import AnyArray, ComparedArray
from csrun.base.half_formats import WORD
from csrun.executable import Combine, Plan, RecordedValue
from csrun.executable.executable import PLAN_FILE
from csrun.executable.recorded_values import FOLDER, ValueFile, update_files, value_files


@dataclass(frozen=True)
class StepValues:
    """One program's values in a step.

    files: of its minibatches, in their order. updates: of the update of each group
    """

    plan: Plan
    files: list[ValueFile]
    updates: list[ValueFile]

    @classmethod
    def of(cls, plan: Plan, folder: Path, step: int) -> "StepValues":
        """Values of a step in a folder; none where it has not been recorded."""
        return cls(plan, value_files(folder, step), update_files(folder, step))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The numbers of its values by key, in the order in which they were computed."""
        assert self.plan.recording is not None, "it has recorded"
        values = enumerate(self.plan.recording.values)
        return {value.key: number for number, value in values if self._has(number)}

    def described(self, key: str) -> RecordedValue:
        """Name, operator and place of a value."""
        assert self.plan.recording is not None, "it has recorded"
        return self.plan.recording.values[self.numbers[key]]

    def value(self, key: str) -> ComparedArray | None:
        """A value of the whole batch; None where those of minibatches do not make one."""
        described = self.described(key)
        number = self.numbers[key]
        parts = [file.read(number) for file in self._files_of(number)]
        half = self.plan.storage if parts[0].dtype == WORD else None
        if len(parts) == 1 or described.combine is Combine.FIRST:
            return ComparedArray(parts[0], half)
        match described.combine:
            case Combine.SAMPLES:
                return ComparedArray(_joined(parts, described), half)
            case Combine.SUM:
                numbers = [ComparedArray(part, half).numbers for part in parts]
                total = np.sum(np.stack(numbers), axis=0, dtype=np.float64)
                return ComparedArray(total.astype(numbers[0].dtype))
            case _:
                return None

    def _has(self, number: int) -> bool:
        return bool(self._files_of(number))

    def _files_of(self, number: int) -> list[ValueFile]:
        """Files of all parts of a value; none where a part is not there."""
        if of_update := [file for file in self.updates if number in file.offsets]:
            return of_update[:1]
        return self.files if all(number in file.offsets for file in self.files) else []


def _joined(parts: Sequence[AnyArray], value: RecordedValue) -> AnyArray:
    """The samples of all parts one after the other, on an axis that may have them several times."""
    axis, outer = value.axis, value.outer
    split = [
        part.reshape(*part.shape[:axis], outer, part.shape[axis] // outer, *part.shape[axis + 1 :])
        for part in parts
    ]
    joined = np.concatenate(split, axis=axis + 1)
    shape = parts[0].shape
    return joined.reshape(*shape[:axis], -1, *shape[axis + 1 :])


def values_of_step(model_dir: Path, step: int, source: str = "") -> list[StepValues]:
    """Programs that have recorded a step, in the order of their batches.

    source: OF_TORCH for the values that PyTorch has computed
    """
    found = list(_programs(model_dir, step, source))
    return sorted(found, key=lambda each: (each.files[0].batch, each.files[0].first_sample))


def _programs(model_dir: Path, step: int, source: str) -> Iterator[StepValues]:
    for path in model_dir.glob(f"tfcs_*/{PLAN_FILE}"):
        folder = path.parent / FOLDER / source
        if value_files(folder, step):
            yield StepValues.of(msgspec.json.decode(path.read_bytes(), type=Plan), folder, step)
