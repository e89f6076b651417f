"""Table of runs: the folders it lists, and their columns."""

import os
import time
from pathlib import Path

import pytest
from support.dashboards import catalog_of

from csrun.dashboard import run_table
from csrun.dashboard.run_table import model_dirs_below
from csrun.records.events import EventWriter


def write_run(folder: Path, losses: dict[int, float], histogram_size: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    writer = EventWriter(folder)
    for step, loss in losses.items():
        writer.scalars({"loss": loss, "local_samples_per_sec": 10.0 * step}, step)
        if histogram_size:
            writer.histogram("weights", range(histogram_size), step)
    writer.close()


def test_model_dirs_are_found_and_nothing_in_them_or_behind_links(tmp_path: Path) -> None:
    for name in ("a", "b/c/model_dir", "a/eval", ".hidden/run", "node_modules/run"):
        write_run(tmp_path / name, {1: 1.0})
    (tmp_path / "compiled" / "tfcs_0123").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    found, is_cut = model_dirs_below(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in found} == {
        "a", "b/c/model_dir", "compiled"
    }  # fmt: skip
    assert not is_cut
    assert model_dirs_below(tmp_path / "a") == ([tmp_path / "a"], False)


def test_a_scan_of_too_many_folders_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_table, "MOST_FOLDERS", 5)
    for number in range(9):
        (tmp_path / str(number)).mkdir()
    assert model_dirs_below(tmp_path)[1]


def test_a_row_has_the_newest_values_also_before_large_histograms(
    tmp_path: Path, state: str
) -> None:
    write_run(tmp_path / "runs" / "x", {10: 2.5, 20: 0.5})
    write_run(tmp_path / "runs" / "y", {30: float("nan")}, histogram_size=3000)
    rows = {row.name: row for row in catalog_of(tmp_path / "runs").rows().rows}
    assert (rows["x"].step, rows["x"].loss, rows["x"].rate) == (20, 0.5, 200.0)
    assert rows["y"].step == 30
    assert str(rows["y"].loss) == "nan"
    assert rows["x"].state == "running"
    assert rows["x"].job_id is None


def test_a_folder_that_changes_is_read_again(tmp_path: Path, state: str) -> None:
    writer = EventWriter(tmp_path / "runs" / "x")
    writer.scalars({"loss": 2.5}, 10)
    (events,) = (tmp_path / "runs" / "x").glob("events*")
    hour_ago_s = time.time() - 3600
    os.utime(events, (hour_ago_s, hour_ago_s))
    catalog = catalog_of(tmp_path / "runs")
    (row,) = catalog.rows().rows
    assert (row.state, row.loss) == ("stopped", 2.5)
    writer.scalars({"loss": 1.5}, 20)
    writer.close()
    (row,) = catalog.rows().rows
    assert (row.state, row.step, row.loss) == ("running", 20, 1.5)
