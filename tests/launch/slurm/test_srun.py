"""The srun line of a layout, against the documented forms."""

import shlex

import pytest

from csrun.jobs.request import JobOptions
from csrun.launch.srun import srun_line
from csrun.site import JobLayout

COMMAND = ("python-ws", "run.py")
LINES = [
    (
        JobLayout(4, 2, 16, 0, cyclic=False),
        "srun --unbuffered --kill-on-bad-exit --nodes=1 --tasks-per-node=2 --cpus-per-task=16 "
        "--gres=cs:1 : --nodes=3 --tasks-per-node=2 --cpus-per-task=16 --exclusive",
    ),
    (
        JobLayout(14, 8, 16, 2, cyclic=True),
        "srun --unbuffered --kill-on-bad-exit --exclusive --nodes=1 --tasks-per-node=1 "
        "--gres=cs:1 : --nodes=1 --tasks-per-node=1 --exclusive : --nodes=12 --tasks-per-node=8 "
        "--cpus-per-task=16 --distribution=cyclic --exclusive",
    ),
    (
        JobLayout(1, 3, 4, 0, cyclic=True),
        "srun --unbuffered --kill-on-bad-exit --nodes=1 --tasks-per-node=3 --cpus-per-task=4 "
        "--gres=cs:1 --distribution=cyclic --exclusive",
    ),
]


@pytest.mark.parametrize(("layout", "line"), LINES)
def test_the_documented_line(layout: JobLayout, line: str) -> None:
    assert srun_line(layout, COMMAND, "cs:1") == f"{line} python-ws run.py"


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_components_hold_as_many_tasks_as_the_layout(nodes: int) -> None:
    for single in range(nodes):
        layout = JobLayout(nodes, 3, 2, single, cyclic=False)
        words = shlex.split(srun_line(layout, ("true",)))
        counted, here = 0, 0
        for word in words:
            if word.startswith("--nodes="):
                here = int(word.removeprefix("--nodes="))
            if word.startswith("--tasks-per-node="):
                counted += here * int(word.removeprefix("--tasks-per-node="))
        assert counted == single + (nodes - single) * 3


def test_the_commands_quoting_is_kept() -> None:
    command = ("sh", "-c", 'echo "$1"', "sh", "a 'b' c", "")
    line = srun_line(JobLayout(1, 1, 1, 0, cyclic=False), command)
    assert tuple(shlex.split(line)[-len(command) :]) == command


def test_labels_are_asked_for_once() -> None:
    line = srun_line(JobLayout(5, 4, 2, 2, cyclic=False), COMMAND, label=True)
    assert line.count("--label") == 1
    assert "--label" in line.split(" : ")[0]


def test_a_jobs_options_are_sruns() -> None:
    options = JobOptions("my job", 93723, "%j.out")
    line = srun_line(JobLayout(2, 1, 1, 0, cyclic=False), COMMAND, options=options)
    asked = shlex.split(line.split(" : ")[0])
    assert asked[3:6] == ["--job-name=my job", "--time=26:02:03", "--output=%j.out"]
