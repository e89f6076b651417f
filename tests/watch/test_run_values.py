"""Progress of a run, from events and telemetry."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from csrun.context import Telemetry
from csrun.records.events import EventWriter
from csrun.watch.logged_steps import LoggedSteps
from csrun.watch.run_values import RunValues, progress_of

BEGUN = datetime.now(UTC)


def logged(*points: tuple[int, float, dict[str, float]]) -> LoggedSteps:
    """Steps with their times and values."""
    found = LoggedSteps()
    for step, wall_s, values in points:
        for tag, value in values.items():
            found.add(step, wall_s, tag, value)
    return found


def telemetry(step: int, last: int | None, updated_s: float, loss: float | None) -> Telemetry:
    return Telemetry(("cs",), "training", step, last, 3.0, 0, "loss 1", updated_s, loss, 0.1)


def test_the_end_is_estimated_from_logged_steps() -> None:
    """100 steps in 50 s are 2 steps/s: 800 more steps take 400 s."""
    points = logged((100, 1000.0, {"loss": 2.0}), (200, 1050.0, {"loss": 1.0}))
    found = progress_of(points, telemetry(200, 1000, 1050.0, 1.0))
    assert found.steps_per_s == pytest.approx(2.0)
    assert found.ends == datetime.fromtimestamp(1450.0, UTC)
    assert [point.loss for point in found.losses] == [2.0, 1.0]


def test_before_the_second_logged_step_the_rate_is_that_of_the_telemetry() -> None:
    found = progress_of(logged((1, 1000.0, {"loss": 2.0})), telemetry(31, 61, 1010.0, 1.5))
    assert found.steps_per_s == 3.0
    assert found.ends == datetime.fromtimestamp(1020.0, UTC)
    assert [(point.step, point.loss) for point in found.losses] == [(1, 2.0), (31, 1.5)]


def test_a_step_that_was_logged_since_the_telemetry_is_shown() -> None:
    points = logged((1, 1000.0, {"loss": 2.0}), (40, 1010.5, {"loss": 1.0}))
    found = progress_of(points, telemetry(31, 61, 1010.0, 1.5))
    assert (found.step, found.loss) == (40, 1.0)
    assert [point.step for point in found.losses] == [1, 40]


def test_a_run_without_a_last_step_has_no_end() -> None:
    assert progress_of(logged(), telemetry(5, None, 1000.0, None)).ends is None


def test_the_loss_scale_is_that_of_the_newest_logged_step() -> None:
    points = logged((1, 1.0, {"train/loss_scale": 64.0}), (2, 2.0, {"train/loss_scale": 32.0}))
    for told in (None, telemetry(2, None, 1.0, 1.0)):
        assert progress_of(points, told).loss_scale == 32.0
    assert progress_of(logged((1, 1.0, {"loss": 1.0})), None).loss_scale is None


def test_shares_are_of_the_rows_of_the_ledger() -> None:
    seconds = {"seconds/compute": 3.0, "seconds/input": 1.0}
    points = logged((1, 1.0, seconds | {"seconds/of_the_user": 9.0}), (2, 2.0, seconds))
    rows = {each.row: (each.seconds, each.share) for each in progress_of(points, None).time}
    assert rows == {"compute": (6.0, 0.75), "input": (2.0, 0.25)}


def test_losses_and_shares_are_of_the_newest_steps() -> None:
    """The last two of three steps; the newest one's values are written twice."""
    steps = LoggedSteps(2)
    for step, loss, compute in ((1, 4.0, 8.0), (2, 3.0, 1.0), (3, 2.0, 2.0), (3, 1.0, 3.0)):
        steps.add(step, float(step), "loss", loss)
        steps.add(step, float(step), "seconds/compute", compute)
    steps.add(3, 3.0, "seconds/input", 1.0)
    assert [(each.step, each.loss) for each in steps.losses] == [(2, 3.0), (3, 1.0)]
    assert [(each.row, each.seconds) for each in steps.time_shares()] == [
        ("compute", 4.0), ("input", 1.0),
    ]  # fmt: skip
    assert [each.step for each in steps.since(1)] == [3]


def test_events_of_other_jobs_in_the_same_folder_are_left_out(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    writer.scalars({"loss": 1.0}, 7)
    hour = timedelta(hours=1)
    assert RunValues(tmp_path, BEGUN + hour, None).progress(None) is None
    assert RunValues(tmp_path, BEGUN - 2 * hour, BEGUN - hour).progress(None) is None
    ours = RunValues(tmp_path, BEGUN - hour, None)
    found = ours.progress(None)
    assert found is not None
    assert (found.step, found.loss) == (7, 1.0)
    writer.scalars({"loss": 0.5}, 8)
    writer.close()
    found = ours.progress(None)
    assert found is not None
    assert [point.step for point in found.losses] == [7, 8]
