"""Recording of the values that the update of each parameter reads and writes.

Updates run in the process with the store, once per step, so their values have separate files, one
per group.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from csrun.executable.arrays import Array
from csrun.executable.bind import StepState, UpdateProgram
from csrun.executable.plan import MOST_STEPS, Combine, Plan, RecordedValue
from csrun.executable.recorded_values import FOLDER, update_file, write_values

BEFORE, AFTER = "update/before/", "update/after/"  # prefixes of the keys of values read and written
WEIGHTS, GRADIENTS = "weights", "gradients"
NUMBERS, CLIP, SKIPPED = f"{BEFORE}numbers", f"{BEFORE}clip", f"{BEFORE}skipped"
Update = Callable[[StepState], None]
Views = Mapping[str, Array]


@dataclass(frozen=True)
class UpdatedValue:
    """A parameter's part of one flat region of the store, before or after its update."""

    key: str
    region: str
    layer: str
    group: int
    start: int
    shape: tuple[int, ...]

    @property
    def described(self) -> RecordedValue:
        """Return its entry in a plan."""
        what = f"update of {self.region}" if self.is_written else self.region
        return RecordedValue(self.key, self.layer, what, combine=Combine.FIRST)

    @property
    def is_written(self) -> bool:
        """Return whether it is the value after the update."""
        return self.key.startswith(AFTER)

    def read(self, views: Views) -> Array:
        """Read the current value from the views of a store."""
        flat = views[f"{self.region}/{self.group}"]
        return flat[self.start : self.start + prod(self.shape)].reshape(self.shape)


def _updated_values(plan: Plan) -> Iterator[UpdatedValue]:
    """Values of the updates of all parameters: those read, then those written."""
    slots = [slot.name for slot in plan.store.slots]
    regions = [(BEFORE, each) for each in (GRADIENTS, WEIGHTS, *slots)]
    regions += [(AFTER, each) for each in (WEIGHTS, *slots)]
    group_of = {layer: group for group in plan.groups for layer in group.layers}
    itemsize = np.dtype(plan.precision).itemsize
    for prefix, region in regions:
        for p in plan.parameters:
            group = group_of[p.layer]
            start = (p.offset_bytes - group.offset_bytes) // itemsize
            key = f"{prefix}{region}/{p.name}"
            yield UpdatedValue(key, region, p.layer, group.index, start, p.shape)


def described_updates(plan: Plan, trained: Collection[str]) -> tuple[RecordedValue, ...]:
    """Return the plan's entries for the updates of these parameters."""
    if not trained:
        return ()
    keys = NUMBERS, CLIP, SKIPPED
    step = [RecordedValue(key, "", "update", combine=Combine.FIRST) for key in keys]
    values = [each for each in _updated_values(plan) if each.key.split("/", 3)[3] in trained]
    return (*step, *(each.described for each in values))


class UpdateRecorder:
    """Updates over a store that write the values of the recorded steps to files."""

    def __init__(self, plan: Plan, views: Views, directory: Path) -> None:
        assert plan.recording is not None, "the program records"
        self._views, self._folder, self._recording = views, directory / FOLDER, plan.recording
        self._count = plan.store.numbers
        self._numbers = {value.key: n for n, value in enumerate(plan.recording.values)}
        self._values: dict[int, list[UpdatedValue]] = {group.index: [] for group in plan.groups}
        for each in _updated_values(plan):
            if each.key in self._numbers:
                self._values[each.group].append(each)

    def over(self, program: UpdateProgram) -> UpdateProgram:
        """Return the same updates with recording; large groups are updated in one piece."""
        recorded = [self._recorded(group, update) for group, update in enumerate(program.update)]
        return replace(program, update=recorded, halves={})

    def _recorded(self, group: int, update: Update) -> Update:
        def run(step: StepState) -> None:
            if self._recording.first <= step.index + 1 <= self._recording.last:
                self._write(group, update, step)
            else:
                update(step)

        return run

    def _write(self, group: int, update: Update, step: StepState) -> None:
        values = self._values[group]
        found: dict[str, Array] = {
            CLIP: np.array(step.clip),
            SKIPPED: np.array(float(step.skipped)),
        }
        if "numbers" in self._views:
            row = self._views["numbers"][step.index % MOST_STEPS]
            found[NUMBERS] = row[: self._count].copy()  # without the norm and the loss scale
        found |= {v.key: v.read(self._views).copy() for v in values if not v.is_written}
        update(step)
        found |= {v.key: v.read(self._views) for v in values if v.is_written}
        self._folder.mkdir(exist_ok=True)
        known = {key: value for key, value in found.items() if key in self._numbers}
        write_values(
            update_file(self._folder, step.index + 1, group),
            ((self._numbers[key], value) for key, value in known.items()),
        )
