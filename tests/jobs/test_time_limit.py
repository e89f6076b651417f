"""Time limits: Slurm's formats, and the end of a job that exceeds one."""

from pathlib import Path

import pytest
from support.jobs import Sandbox, over_its_limit

from csrun.base.errors import UsageError
from csrun.jobs.time_limit import format_duration, parse

ONE_TASK = ("--total-nodes", "1", "--tasks-per-node", "1")

# The acceptable formats of sbatch(1), --time.
FORMS = [
    ("3", 180), ("90", 5400), ("2:30", 150), ("0:01", 1), ("1:02:03", 3723), ("48:00:00", 172800),
    ("2-0", 172800), ("1-2", 93600), ("1-2:30", 95400), ("1-02:30:15", 95415), ("0", None),
    ("0:00", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), FORMS)
def test_slurms_forms(text: str, seconds: int | None) -> None:
    assert parse(text) == seconds


ENDLESS = pytest.param("9" * 5000, id="endless")


@pytest.mark.parametrize(
    "text", ["", "one", "-1", "1:2:3:4", "1.5", "1-", "3m", " 3", "٣", ENDLESS]
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--time-limit: must be minutes"):
        parse(text)


@pytest.mark.parametrize("text", ["10000-0:00:01", "9" * 20, "1-" + "9" * 20])
def test_a_limit_that_no_clock_can_tell_is_refused(text: str) -> None:
    assert parse("10000-0") == 864_000_000
    with pytest.raises(UsageError, match="--time-limit: must be at most 10000 days, got"):
        parse(text)


# As squeue prints TIME.
@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3723, "1:02:03"), (95415, "1-02:30:15")],
)
def test_durations_as_squeue_shows_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("ending", ["exit 0", "exit 5"])
def test_a_job_over_its_limit_is_ended_in_order(ending: str, tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    script = f"trap 'echo told; {ending}' TERM; touch up; while :; do sleep 0.05; done"
    done, limit = over_its_limit(place, (tmp_path / "up").exists, *ONE_TASK, "sh", "-c", script)
    assert done.returncode == 143
    assert "told" in done.stdout
    assert f"csrun_wse: time limit of {limit} reached: job terminated" in done.stderr
    record = place.record(len(list(place.jobs.iterdir())))
    assert (record["state"], record["exit_code"]) == ("TIMEOUT", 143)


def test_a_limit_that_is_not_reached_changes_nothing(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    done = place.run(*ONE_TASK, "--time-limit=5", "sh", "-c", "exit 4")
    assert done.returncode == 4
    assert place.record(1)["state"] == "FAILED"


def test_a_command_of_csrun_cpu_over_its_limit_is_ended(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    done = place.run("--time-limit", "0:01", "sleep", "60", command="csrun_cpu")
    assert done.returncode == 143
    assert "time limit of 0:01 reached" in done.stderr
    assert place.record(1)["state"] == "TIMEOUT"


def test_a_wrong_limit_is_refused_before_anything_runs(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    done = place.run(*ONE_TASK, "--time-limit", "soon", "true")
    assert done.returncode == 2
    assert "got 'soon'" in done.stderr
    assert not place.jobs.exists()
