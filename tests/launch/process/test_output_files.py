"""--output: file of each task, by srun's patterns."""

import re
from pathlib import Path

import pytest
from support.jobs import Sandbox

from csrun.base.errors import UsageError
from csrun.context import Role, TaskEntry
from csrun.launch.process.output_files import OutputPlace, check_pattern, expand

TWO_NODES = ("--total-nodes", "2", "--tasks-per-node", "2")
PLACE = OutputPlace(12, "a/b", "me", TaskEntry(3, Role.TASK, "node2", 1, 0, (0,)))

# Source: srun(1), filename pattern.
PATTERNS = [
    ("out", "out"), ("%j.out", "12.out"), ("%5j-%t", "00012-3"), ("%x_%u", "a_b_me"),
    ("%N/%n", "node2/1"), ("100%%", "100%"), ("%%j", "%j"), ("%02t%02n", "0301"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "name"), PATTERNS)
def test_fields(pattern: str, name: str) -> None:
    assert expand(pattern, PLACE) == Path(name)


@pytest.fixture
def place(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_one_file_gets_what_the_terminal_would_and_a_failure_is_in_both(place: Sandbox) -> None:
    place.script("import sys; print('out'); print('err', file=sys.stderr); raise ValueError('bad')")
    done = place.run(*TWO_NODES, "--output", "all-%j.txt", "python", "run.py")
    assert done.returncode == 1
    assert done.stdout == "Launching: python run.py\n"
    assert "ValueError: bad" in done.stderr
    assert (place.path / "all-1.txt").read_text().startswith("out\nerr\nTraceback")


def test_every_task_has_its_own(place: Sandbox) -> None:
    place.script("import os; print('rank', os.environ['SLURM_PROCID'])")
    assert place.run(*TWO_NODES, "--output", "%x-%t", "python", "run.py").returncode == 0
    written = {path.name: path.read_text() for path in place.path.glob("run.py-*")}
    assert written == {f"run.py-{rank}": f"rank {rank}\n" for rank in range(4)}


def test_the_tasks_of_a_node_share_a_file(place: Sandbox) -> None:
    done = place.run(*TWO_NODES, "--label", "--output", "%N", "sh", "-c", "echo $SLURM_LOCALID")
    assert done.returncode == 0
    assert sorted((place.path / "node1").read_text().splitlines()) == ["0: 0", "1: 1"]
    assert sorted((place.path / "node2").read_text().splitlines()) == ["2: 0", "3: 1"]


def test_csrun_cpu_writes_a_file(place: Sandbox) -> None:
    done = place.run(
        "--output", "%j.txt", "sh", "-c", "echo out; echo err >&2; exit 3", command="csrun_cpu"
    )
    assert done.returncode == 3
    assert (place.path / "1.txt").read_text() == "out\nerr\n"
    assert place.record(1)["state"] == "FAILED"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("%q", "unknown field %q"),
        ("50%", "unknown field %;"),
        ("no/where", "no such folder: no"),
        ("/tmp/", "must be a file, got the folder /tmp"),
        ("", "must be a file, got the folder ."),
    ],
)
def test_a_wrong_pattern_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check_pattern(pattern)


@pytest.mark.parametrize("command", ["csrun_wse", "csrun_cpu"])
def test_a_wrong_pattern_is_refused_before_there_is_a_job(command: str, place: Sandbox) -> None:
    done = place.run("--output", "%q", "true", command=command)
    assert done.returncode == 2
    assert "unknown field %q" in done.stderr
    assert not place.jobs.exists()


def test_a_file_that_cannot_be_opened_fails_the_job(place: Sandbox) -> None:
    (place.path / "1").mkdir()
    done = place.run(*TWO_NODES, "--output", "%j", "true")
    assert done.returncode == 2
    assert "--output: 1: cannot be written: Is a directory" in done.stderr
    assert place.record(1)["state"] == "FAILED"


def test_a_full_disk_ends_the_job(place: Sandbox) -> None:
    script = "while :; do echo text; sleep 0.05; done"
    done = place.run(*TWO_NODES, "--output", "/dev/full", "sh", "-c", script)
    assert done.returncode == 1
    assert "/dev/full: No space left on device" in done.stderr
    assert place.record(1)["state"] == "FAILED"


@pytest.mark.parametrize("command", ["csrun_wse", "csrun_cpu"])
def test_a_name_that_would_break_a_table_is_refused(command: str, place: Sandbox) -> None:
    done = place.run("--job-name", "a\n\x1b[31mb", "true", command=command)
    assert done.returncode == 2
    assert r"--job-name: must be one line of printable text, got 'a\n\x1b[31mb'" in done.stderr
    assert not place.jobs.exists()


def test_options_of_a_job_need_one(place: Sandbox) -> None:
    done = place.run("--alloc-node", "False", "--job-name", "x", "true", command="csrun_cpu")
    assert done.returncode == 2
    assert "add --alloc-node True" in done.stderr
