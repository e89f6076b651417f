"""The first operator whose value differs between two trainings.

Both run again from their newest common checkpoint. The steps are recorded in windows of 2, 4, 8 and
so on, up to the first step whose logged losses differ: each window starts from the checkpoint.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from csrun.advice.operator_comparison.recorded_run import RecordedRun
from csrun.advice.operator_comparison.step_values import StepValues, values_of_step
from csrun.advice.operator_comparison.value_difference import (
    EXACT,
    Tolerance,
    ValueDifference,
    difference_of,
)
from csrun.base.errors import CsrunError, UsageError
from csrun.base.run_command import RunCommand
from csrun.executable import RECORDED
from csrun.executable.recorded_values import OF_TORCH
from csrun.records import checkpoints
from csrun.records.checkpoints import Checkpoint
from csrun.records.run_comparison import compare_losses, losses_of

MOST_NAMES = 3  # of values that one run alone has
FIRST_WINDOW = 2  # of two steps the second reads the weights that the first has updated
Report = Callable[[str], None]
ValuesOfStep = Callable[[int], list[list[StepValues]]]  # programs of both runs


class OperatorDifference(msgspec.Struct, frozen=True):
    """The first value that differs; key: its name in both runs. line: the user's, of the first.

    recorded: the operator of a recorded PyTorch step whose result it is, if known
    """

    step: int
    layer: str
    operator: str
    kernels: tuple[str, str]
    recorded: str
    line: str
    key: str
    shape: tuple[int, ...]
    value: ValueDifference


class OperatorComparison(msgspec.Struct, frozen=True):
    """Steps and values that were compared.

    start: step of the common checkpoint, None for the first weights. only_first, only_second:
    values of one run alone in a step; first_names, second_names: the first of them. unlike: of
    several minibatches, or of other shapes, so that they cannot be compared.
    """

    start: int | None
    first_step: int
    last_step: int
    compared: int
    only_first: int
    only_second: int
    unlike: int
    tolerance_ulp: int
    difference: OperatorDifference | None
    first_names: tuple[str, ...] = ()
    second_names: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Return whether all compared values are equal, within the tolerance."""
        return self.difference is None


def compare_operators(
    first: Path,
    second: Path,
    tolerance: Tolerance = EXACT,
    steps: int | None = None,
    report: Report = lambda _: None,
) -> OperatorComparison:
    """Run two trainings again, and compare their values up to the first difference.

    steps: number of steps to compare; None: up to the first loss that differs, 2 without one

    Raises: UsageError where one cannot be run again, or they have no value in common
    """
    runs = RecordedRun.of(first), RecordedRun.of(second)
    losses = compare_losses(losses_of(first), losses_of(second))
    latest = losses.diverged.step if losses.diverged else losses.last_common
    starts = next(_common_starts(first, second, latest), (None, None))
    step = starts[0].step if starts[0] else 0
    end = latest if losses.diverged else step + FIRST_WINDOW
    end = end if steps is None else step + steps
    return _compare_again(runs, starts, (step + 1, end), tolerance, report)


def compare_commands(
    first: RunCommand,
    second: RunCommand,
    tolerance: Tolerance = EXACT,
    steps: int | None = None,
    report: Report = lambda _: None,
) -> OperatorComparison:
    """Run the trainings of two commands in folders of their own, and compare their first steps, up
    to the first difference.

    Raises: UsageError where one cannot be run, or they have no value in common
    """
    runs = [RecordedRun(shlex.join(each.argv), each) for each in (first, second)]
    return _compare_again(runs, (None, None), (1, steps or FIRST_WINDOW), tolerance, report)


def _compare_again(
    runs: Sequence[RecordedRun],
    starts: Sequence[Checkpoint | None],
    steps: tuple[int, int],
    tolerance: Tolerance,
    report: Report,
) -> OperatorComparison:
    """Record steps of both runs in windows, and compare them up to the first difference."""
    counted, (first_step, end) = _Count(tolerance), steps
    for window in _windows(first_step, end):
        with TemporaryDirectory(prefix="csrun-compare-") as folder:
            places = [Path(folder, name) for name in "ab"]
            for run, start, place in zip(runs, starts, places, strict=True):
                report(f"{run.name}: recording {_steps_text(window)}")
                run.record(start, window, place, report=report)
            step = counted.add_steps(window, _reader((places[0], ""), (places[1], "")))
        if counted.difference is not None or step < window[1]:  # found, or a run has ended
            break
    if not counted.compared:
        raise UsageError(
            f"{runs[0].name} and {runs[1].name}: no value of step {first_step} was recorded by"
            " both: compare trainings of one model"
        )
    return counted.result(starts[0], first_step, step)


def compare_with_torch(
    model_dir: Path,
    tolerance: Tolerance = EXACT,
    steps: int = 1,
    report: Report = lambda _: None,
) -> OperatorComparison:
    """Run a training of a PyTorch script again, and compare its values with PyTorch's own.

    PyTorch gets the weights and the batch of each step that the program has, which is the first one
    after the newest checkpoint.

    Raises: UsageError where it cannot be run again, or has no value of a PyTorch operator
    """
    run, counted = RecordedRun.of(model_dir), _Count(tolerance)
    start = _newest_before(model_dir, max(losses_of(model_dir)))
    first = 1 + (start.step if start else 0)
    window = first, first + steps - 1
    with TemporaryDirectory(prefix="csrun-compare-") as folder:
        place = Path(folder, "a")
        report(f"{model_dir}: recording {_steps_text(window)}")
        run.record(start, window, place, against_torch=True, report=report)
        step = counted.add_steps(window, _reader((place, ""), (place, OF_TORCH)))
    if not counted.compared:
        raise UsageError(
            f"{model_dir}: no value of step {first} is that of a PyTorch operator: --against torch"
            " needs a script with cerebras_torch"
        )
    return counted.result(start, first, step)


def _steps_text(steps: tuple[int, int]) -> str:
    first, last = steps
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _reader(*sources: tuple[Path, str]) -> ValuesOfStep:
    """Return what reads a step of two runs: of each its folder, and who has computed the values."""

    def read(step: int) -> list[list[StepValues]]:
        return [values_of_step(folder, step, source) for folder, source in sources]

    return read


def _newest_before(model_dir: Path, step: int) -> Checkpoint | None:
    steps = sorted(each for each in checkpoints.kept_steps(model_dir) if each < step)
    return (
        checkpoints.open_checkpoint(model_dir / checkpoints.name_of(steps[-1])) if steps else None
    )


class _Count:
    """Values compared so far."""

    def __init__(self, tolerance: Tolerance) -> None:
        self._tolerance = tolerance
        self.compared = self._unlike = 0
        self._only_first: list[str] = []
        self._only_second: list[str] = []
        self.difference: OperatorDifference | None = None

    def add_steps(self, steps: tuple[int, int], values: ValuesOfStep) -> int:
        """Compare steps up to the first difference; return the last one that both runs have."""
        for step in range(steps[0], steps[1] + 1):
            if not self._add(step, *values(step)):
                return step - 1
            if self.difference is not None:
                return step
        return steps[1]

    def _add(self, step: int, a: Sequence[StepValues], b: Sequence[StepValues]) -> bool:
        """Compare a step up to the first difference; return whether both runs have it."""
        for one, other in zip(a, b, strict=False):
            self._only_first = [key for key in one.numbers if key not in other.numbers]
            self._only_second = [key for key in other.numbers if key not in one.numbers]
            for key in one.numbers:
                if key in other.numbers and self._differs(step, key, one, other):
                    return True
        return bool(a and b)

    def _differs(self, step: int, key: str, one: StepValues, other: StepValues) -> bool:
        x, y = one.value(key), other.value(key)
        if x is None or y is None or x.array.shape != y.array.shape:
            self._unlike += 1
            return False
        self.compared += 1
        if self._tolerance.ulp:  # a sum of the loss has more digits than what it sums
            x, y = x.in_precision(one.plan.precision), y.in_precision(other.plan.precision)
        halves = [each.plan.storage for each in (one, other) if each.plan.storage is not None]
        found = difference_of(x, y, self._tolerance, halves)
        if found is None:
            return False
        described, kernel = one.described(key), other.described(key).kernel
        self.difference = OperatorDifference(
            step=step,
            layer=described.layer,
            operator=described.operator,
            kernels=(described.kernel, kernel),
            recorded=described.recorded.removeprefix(RECORDED).partition("_")[2],
            line=described.line,
            key=key,
            shape=x.array.shape,
            value=found,
        )
        return True

    def result(self, start: Checkpoint | None, first: int, last: int) -> OperatorComparison:
        """The comparison of these steps."""
        return OperatorComparison(
            start=None if start is None else start.step,
            first_step=first,
            last_step=last,
            compared=self.compared,
            only_first=len(self._only_first),
            only_second=len(self._only_second),
            first_names=tuple(self._only_first[:MOST_NAMES]),
            second_names=tuple(self._only_second[:MOST_NAMES]),
            unlike=self._unlike,
            tolerance_ulp=self._tolerance.ulp,
            difference=self.difference,
        )


def _windows(first: int, end: int) -> Iterator[tuple[int, int]]:
    """First and last steps of the windows up to a step."""
    size = FIRST_WINDOW
    while first <= end:
        yield first, min(first + size - 1, end)
        first, size = first + size, 2 * size


def _common_starts(
    first: Path, second: Path, latest: int
) -> Iterator[tuple[Checkpoint, Checkpoint]]:
    """Checkpoints of both runs with equal weights and state, newest first, before a step."""
    common = {*checkpoints.kept_steps(first)} & {*checkpoints.kept_steps(second)}
    for step in sorted(common, reverse=True):
        if step >= latest:
            continue
        name = checkpoints.name_of(step)
        with suppress(CsrunError):  # a damaged one
            pair = tuple(checkpoints.open_checkpoint(each / name) for each in (first, second))
            if _is_equal(*pair):
                yield pair[0], pair[1]


def _is_equal(a: Checkpoint, b: Checkpoint) -> bool:
    """Return whether weights, and the optimizer's state that both have, are equal."""
    if {*a.weights} != {*b.weights}:
        return False
    x, y = a.manifest.tensors, b.manifest.tensors
    return all(x[name] == y[name] for name in x.keys() & y.keys())
