"""Arguments of srun and sbatch for a job, compared with the forms in their manual pages."""

import shlex

import pytest

from csrun.jobs.request import JobOptions
from csrun.launch.srun import (
    Resources,
    batch_script,
    cpu_argv,
    in_container,
    salloc_argv,
    srun_argv,
    srun_line,
    step_argv,
)
from csrun.site import JobLayout

COMMAND = ("python-ws", "run.py")
QUOTED = ("python-ws", "run.py", "-o", "a b")
STREAMING = JobLayout(4, 8, 2, 2, cyclic=True)
PIPELINED = JobLayout(3, 2, 4, 0, cyclic=False)
ASKED = Resources("cs:cs2-02:1", 16, "digits", 3600)
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


@pytest.mark.parametrize(
    ("limit_s", "grace_s", "word"),
    [
        (None, 30.0, "--signal=TERM@30"),
        (None, 0.5, "--signal=TERM@1"),
        (None, None, ""),
        (3600, 30.0, "--time=62"),
        (59, 90.0, "--time=3"),
    ],
)
def test_a_job_has_its_grace_before_slurms_limit(
    limit_s: int | None, grace_s: float | None, word: str
) -> None:
    words = Resources(time_limit_s=limit_s, grace_s=grace_s).arguments()
    assert words == ([word] if word else [])


def test_the_srun_of_a_streaming_job() -> None:
    assert shlex.join(srun_argv(STREAMING, QUOTED, ASKED)) == (
        "srun --unbuffered --kill-on-bad-exit --job-name=digits --time=62 --exclusive --nodes=1"
        " --tasks-per-node=1 --cpus-per-task=16 --gres=cs:cs2-02:1"
        " : --job-name=digits --time=62 --nodes=1 --tasks-per-node=1 --cpus-per-task=16"
        " --exclusive"
        " : --job-name=digits --time=62 --nodes=2 --tasks-per-node=8 --cpus-per-task=2"
        " --distribution=cyclic --exclusive python-ws run.py -o 'a b'"
    )


def test_the_step_of_a_batch_job_asks_for_nothing_that_the_job_has() -> None:
    assert shlex.join(step_argv(STREAMING, QUOTED, ASKED)) == (
        "srun --unbuffered --kill-on-bad-exit --het-group=0 --ntasks=1 --nodes=1 --tasks-per-node=1"
        " --cpus-per-task=16 : --het-group=1 --ntasks=1 --nodes=1 --tasks-per-node=1"
        " --cpus-per-task=16 : --het-group=2 --ntasks=16 --nodes=2 --tasks-per-node=8"
        " --cpus-per-task=2 --distribution=cyclic python-ws run.py -o 'a b'"
    )


def test_the_step_of_a_whole_job_is_on_its_nodes_in_turn() -> None:
    words = shlex.join(step_argv(STREAMING, ("true",), ASKED, is_whole=True))
    first, second, others = words.split(" : ")
    assert " --relative=0 --ntasks=1 --nodes=1 " in first
    assert second.startswith("--relative=1 --ntasks=1 --nodes=1 ")
    assert others.startswith("--relative=2 --ntasks=16 --nodes=2 ")
    assert "--het-group" not in words


def test_the_salloc_that_asks_for_all_of_a_job() -> None:
    words = shlex.join(salloc_argv(PIPELINED, Resources("cs:cs2-01:1", first=("--nice=3",))))
    assert words == (
        "salloc --nice=3 --nodes=1 --tasks-per-node=2 --cpus-per-task=4 --gres=cs:cs2-01:1"
        " : --nodes=2 --tasks-per-node=2 --cpus-per-task=4 --exclusive"
    )


def test_one_node_is_no_heterogeneous_step() -> None:
    words = step_argv(JobLayout(1, 3, 2, 0, cyclic=False), ("true",), Resources("cs:1", 8))
    assert words == ("srun", "--unbuffered", "--kill-on-bad-exit", "--ntasks=3", "--nodes=1",
                     "--tasks-per-node=3", "--cpus-per-task=2", "true")  # fmt: skip


def test_a_batch_script() -> None:
    resources = Resources("cs:cs2-01:1", 16, first=("--comment=a b",))
    assert batch_script(PIPELINED, QUOTED, resources) == (
        "#!/bin/sh\n"
        "#SBATCH '--comment=a b'\n"
        "#SBATCH --nodes=1\n"
        "#SBATCH --tasks-per-node=2\n"
        "#SBATCH --cpus-per-task=4\n"
        "#SBATCH --gres=cs:cs2-01:1\n"
        "#SBATCH hetjob\n"
        "#SBATCH --nodes=2\n"
        "#SBATCH --tasks-per-node=2\n"
        "#SBATCH --cpus-per-task=4\n"
        "#SBATCH --exclusive\n"
        "exec python-ws run.py -o 'a b'\n"
    )


def test_a_container_sees_each_folder_once() -> None:
    assert in_container(("true",), None, ["/a"]) == ("true",)
    assert in_container(("true",), "csrun.sif", ["/a", "/b", "/a"]) == (
        "apptainer", "exec", "-B", "/a,/b", "csrun.sif", "true",
    )  # fmt: skip
    assert in_container(("true",), "csrun.sif", []) == ("apptainer", "exec", "csrun.sif", "true")


def test_a_command_on_a_cpu_node_keeps_away_from_the_systems() -> None:
    words = cpu_argv(("bash",), Resources(), None, "node1", on_terminal=True)
    assert shlex.join(words) == ("srun --pty --nodes=1 --ntasks=1 --exclude=node1 --exclusive bash")
    asked = Resources(job_name="shell", time_limit_s=60, grace_s=30)
    assert shlex.join(cpu_argv(("make",), asked, "out.txt", None, on_terminal=False)) == (
        "srun --job-name=shell --time=3 --output=out.txt --nodes=1 --ntasks=1 --exclusive make"
    )
