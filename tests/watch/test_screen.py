"""Drawing of snapshots: all values are shown, and texts are escaped."""

import io
import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from rich.console import Console
from rich.segment import SegmentLines

from csrun.base.mode import ExecutionMode
from csrun.jobs.overview import SystemStatus
from csrun.system import Power
from csrun.watch.run_panel import bar, sparkline
from csrun.watch.screen import ScreenView, frame, screen, sort_jobs
from csrun.watch.site_snapshot import (
    JobDetail,
    JobLine,
    LossPoint,
    RunProgress,
    SiteSnapshot,
    TaskLine,
    TimeShare,
)

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
SYSTEM = SystemStatus("cs2-01", "127.0.0.1", ExecutionMode.PIPELINED, Power.ACTIVE, 2, (3,))
HOSTILE = "\x1b[31mred\x1b]0;title\x07[bold]m\u202e\r\n" + "x" * 10_000


def job(job_id: int, state: str = "RUNNING", name: str = "run.py", why: str = "") -> JobLine:
    started = None if state == "PENDING" else NOW - timedelta(minutes=1)
    ended = NOW if state in ("COMPLETED", "FAILED") else None
    return JobLine(job_id, name, "ada", state, 4, "cs2-01", NOW, started, ended, 60.0, why)


RUN = RunProgress(
    "training",
    500,
    1000,
    25.0,
    0.5,
    2000.0,
    1900.0,
    0.07,
    "loss 0.5",
    NOW,
    NOW + timedelta(seconds=20),
    tuple(LossPoint(step, 2.0 - step / 500) for step in range(0, 500, 10)),
    (
        TimeShare("compute", 15.0, 0.75),
        TimeShare("first_group", 5.0, 0.25),
        TimeShare("script", 0.0, 0.0),
    ),
    65536.0,
)
TASKS = (
    TaskLine("chief", 0, "chief", "node1", "running", 12.0, 310_000_000),
    TaskLine("wafer cs2-01", None, "wafer", "node1", "running", 99.0, 250_000_000),
    TaskLine("streamer 1", 1, "streamer", "node2", "running", 30.0, 90_000_000, True),
)
DETAIL = JobDetail(
    2, True, "/jobs/2", "/runs/model_dir", RUN, TASKS, ("INFO:csrun:Fabric programmed",)
)
JOBS = (job(2), job(3, "PENDING", why="waits for 4 of the 16 nodes: job 2 holds 4"))
SNAPSHOT = SiteSnapshot("local", NOW, (SYSTEM,), JOBS, DETAIL)


def drawn(
    snapshot: SiteSnapshot, width: int = 120, height: int = 40, view: ScreenView | None = None
) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=view is not None)
    shown = frame(snapshot, console) if view is None else screen(snapshot, console, view)
    console.print(SegmentLines(shown, new_lines=True), end="")
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_frame_has_systems_jobs_and_the_run(width: int) -> None:
    text = drawn(SNAPSHOT, width)
    for part in (
        "1 running, 1 waiting", "cs2-01", "PIPELINED", "job 2", "waits for 4 of the 16 nodes",
        "step 500 of 1,000", "50%", "25 steps/s", "Rate 2,000, GlobalRate 1,900 samples/s",
        "65,536", "waited 7%", "first group", "75%", "wafer cs2-01", "310 MB", "straggler",
        "Fabric programmed",
    ):  # fmt: skip
        assert part in text, part
    assert "script" not in text  # which has no time


@pytest.mark.parametrize("height", [24, 40])
def test_a_screen_has_the_height_of_its_terminal(height: int) -> None:
    many = tuple(job(number, "PENDING") for number in range(10, 210))
    snapshot = msgspec.structs.replace(SNAPSHOT, jobs=(*JOBS, *many))
    text = drawn(snapshot, 100, height, ScreenView(selected=150))
    assert len(text.splitlines()) == height
    assert "150" in text
    assert re.search(r"1 running, 201 waiting, \d+ of 202 jobs shown", text)
    assert "up/down: job" in text


def test_hostile_text_is_shown_as_text() -> None:
    task = TaskLine(HOSTILE, None, HOSTILE, HOSTILE, HOSTILE)
    run = msgspec.structs.replace(RUN, what=HOSTILE, detail=HOSTILE, loss=None)
    detail = JobDetail(2, True, HOSTILE, HOSTILE, run, (task,), (HOSTILE, "INFO:csrun:" + HOSTILE))
    hostile = msgspec.structs.replace(job(2, name=HOSTILE, why=HOSTILE), user=HOSTILE)
    hostile = msgspec.structs.replace(hostile, state=HOSTILE, system=HOSTILE)
    system = msgspec.structs.replace(SYSTEM, name=HOSTILE)
    snapshot = SiteSnapshot(HOSTILE, NOW, (system,), (hostile,), detail)
    for width in (60, 200):
        text = drawn(snapshot, width)
        assert r"\x1b[31m" in text
        assert all(char.isprintable() or char == "\n" for char in text)
        assert max(map(len, text.splitlines())) <= width
    assert "[bold]" in text
    assert "\x1b]0;" not in drawn(snapshot, 100, 30, ScreenView(2))
    assert msgspec.json.decode(msgspec.json.encode(snapshot))["jobs"][0]["name"] == HOSTILE


def test_why_a_job_failed_is_in_its_panel_where_the_table_cuts_it() -> None:
    why = "rank 1 (streamer) on node2: FileNotFoundError: data/train.bin"
    detail = msgspec.structs.replace(DETAIL, run=None)
    snapshot = msgspec.structs.replace(SNAPSHOT, jobs=(job(2, "FAILED", why=why),), job=detail)
    assert why in drawn(snapshot, 80, 24, ScreenView(2))
    text = drawn(snapshot, 40, 24, ScreenView(2))
    assert "FileNotFoundError:" in text
    assert "data/train.bin" in text


def test_the_end_of_a_run_of_several_days_has_a_date() -> None:
    for left, style in ((timedelta(minutes=9), "%H:%M:%S"), (timedelta(days=3), "%Y-%m-%d %H:%M")):
        ends = NOW.astimezone() + left
        detail = msgspec.structs.replace(DETAIL, run=msgspec.structs.replace(RUN, ends=ends))
        assert f", ends {ends:{style}} (in " in drawn(msgspec.structs.replace(SNAPSHOT, job=detail))


def test_a_run_that_is_silent_is_marked_while_its_job_lives() -> None:
    silent = msgspec.structs.replace(RUN, updated=NOW - timedelta(seconds=80))
    detail = msgspec.structs.replace(DETAIL, run=silent)
    assert "no progress for 1:20" in drawn(msgspec.structs.replace(SNAPSHOT, job=detail))
    ended = msgspec.structs.replace(SNAPSHOT, job=detail, jobs=(job(2, "COMPLETED"),))
    assert "no progress" not in drawn(ended)


STREAMERS = tuple(
    TaskLine(f"streamer {n}", n, "streamer", f"node{n}", "running", 7.0, 75_000_000)
    for n in range(90)
)


def with_tasks(*tasks: TaskLine) -> SiteSnapshot:
    detail = msgspec.structs.replace(DETAIL, tasks=tasks)
    return msgspec.structs.replace(SNAPSHOT, job=detail)


def test_of_many_tasks_those_that_need_a_look_come_first() -> None:
    failed = msgspec.structs.replace(STREAMERS[70], state="failed")
    snapshot = with_tasks(*STREAMERS[:70], failed, *STREAMERS[71:])
    text = drawn(snapshot, 120, 40, ScreenView(2))
    rows = text.count("75 MB")
    assert "failed" in text
    assert f"not shown: the systems, {90 - rows} of 90 tasks; csrun top 2 --once" in text
    assert drawn(snapshot, 120).count("75 MB") == 90


def test_a_small_terminal_shows_the_run_and_all_of_seven_tasks() -> None:
    snapshot = with_tasks(*STREAMERS[:7])
    text = drawn(snapshot, 80, 24, ScreenView(2))
    for part in ("step 500 of 1,000", "25 steps/s", "RUNNING", "compute 75%, first group 25%"):
        assert part in text, part
    assert text.count("75 MB") == text.count("  7%") == 7
    assert "cs2-01" in text
    assert "not shown" not in text


def test_a_tiny_terminal_still_shows_step_and_speed() -> None:
    text = drawn(with_tasks(*STREAMERS[:7]), 44, 12, ScreenView(2))
    for part in ("step 500 of 1,000", "25 steps/s", "not shown: the systems, ", "q: quit"):
        assert part in text, part
    assert len(text.splitlines()) == 12


def test_jobs_that_live_come_first_then_the_latest() -> None:
    jobs = [job(1, "FAILED"), job(2), job(4, "COMPLETED"), job(5, "PENDING")]
    assert [each.job_id for each in sort_jobs(jobs)] == [2, 5, 4, 1]


def test_the_log_of_a_job_is_titled_or_said_to_be_missing() -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", drawn(SNAPSHOT, 120, 40, ScreenView(2)))
    assert re.search(r"^log ─+\nFabric programmed", text, re.MULTILINE)
    silent = msgspec.structs.replace(SNAPSHOT, job=msgspec.structs.replace(DETAIL, log=()))
    assert "no log" in drawn(silent, 80, 24, ScreenView(2, shows_log=True))
    assert "log ─" not in drawn(silent, 120, 40, ScreenView(2))


def test_an_idle_site() -> None:
    text = drawn(SiteSnapshot("local", NOW, (SYSTEM,), ()))
    assert "0 running, 0 waiting" in text
    assert "no jobs yet: start one with csrun_wse" in text


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([0.0, 7.0], "▁█"),
        (list(map(float, range(8))), "▁▂▃▄▅▆▇█"),
        ([0.0, float("nan"), 7.0], "▁ █"),
        ([float("nan")], ""),
        ([1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0], "▁▂▃▄▅▆▇█"),  # logarithms
        ([*[0.0] * 50, *[7.0] * 50], "▁▁▁▁▁█████"),
    ],
)
def test_a_sparkline(values: list[float], line: str) -> None:
    assert sparkline(values, 10, ascii_only=False) == line


def test_bars() -> None:
    assert bar(0.5, 4, ascii_only=False) == "██░░"
    assert bar(2.0, 4, ascii_only=True) == "####"
    assert bar(-1.0, 4, ascii_only=True) == "...."
