"""Options, scripts, variables and commands of a Slurm job."""

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from csrun.base.errors import UsageError
from csrun.context import Role, environment
from csrun.jobs.request import JobOptions, JobRequest
from csrun.launch.job_plan import plan
from csrun.launch.slurm import options, sbatch
from csrun.launch.srun import after_prolog
from csrun.launch.user_command import UserCommand, option
from csrun.site import JobLayout, Scheduler, load

SITE = msgspec.structs.replace(load("local"), gres="cs:{system}:1")
SLURM_SITE = msgspec.structs.replace(
    SITE,
    slurm_options={"partition": "cs", "account": "lab", "nice": 10, "requeue": True},
    prolog=("module load apptainer", "export A='b c'"),
)


def test_slurms_own_options_are_the_sites_and_the_command_lines() -> None:
    given = options.of(["partition=big", "--mail_type=END"], SLURM_SITE, batch=True)
    assert given.every == ("--partition=big", "--account=lab")
    assert given.first == ("--nice=10", "--requeue", "--mail-type=END")
    assert given.partitions == ("big",)
    assert options.of([], SLURM_SITE, batch=False).first == ("--nice=10",)  # srun knows no requeue


def test_options_of_a_role_go_over_the_sites_and_under_the_command_lines() -> None:
    roles = {"chief": {"qos": "high", "mem": 100}, "streamer": {"partition": "cpu"}}
    site = msgspec.structs.replace(SLURM_SITE, slurm_options_by_role=roles)
    given = options.of(["mem=7"], site, batch=True, roles=[Role.CHIEF, Role.STREAMER])
    assert given.by_component == (
        ("--partition=cs", "--account=lab", "--qos=high", "--mem=7"),
        ("--partition=cpu", "--account=lab", "--mem=7"),
    )
    assert given.partitions == ("cs", "cpu")


@pytest.mark.parametrize(("option", "said"), [
    *((name, f"csrun sets {name} itself: {why}") for name, why in options.REFUSED.items()),
    ("export=NONE", "sets export itself: tasks inherit this shell's environment"),
    ("acount=lab", "did you mean account?"),
    ("burst-buffer=x", "known: account, begin"),
    ("requeue", "add --sbatch"),
    ("comment=a\nb", "must be one line of printable text"),
])  # fmt: skip
def test_an_option_that_is_not_passed_on(option: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        options.of([option], SITE, batch=False)
    site = msgspec.structs.replace(SITE, slurm_options={"array": "1-3"})
    with pytest.raises(UsageError, match=r"site local: slurm_options\.array: csrun sets"):
        options.of([], site, batch=True)


def test_the_two_scripts_of_a_job_that_is_compiled_first() -> None:
    asked = JobOptions(slurm_options=("dependency=afterok:3", "comment=a 'b'"))
    request = JobRequest(
        ("python-ws", "run.py"), 5, 3, 2, sbatch=True, compile_first=True, options=asked
    )
    given = options.of(asked.slurm_options, SLURM_SITE, batch=True)
    job_plan = plan(request, SLURM_SITE, tuple(range(8)))
    resources = sbatch.resources_of(request, "cs:cs2-02:1", SLURM_SITE, given)
    made = sbatch.submission(request, job_plan, SLURM_SITE, resources, ("cs2-02",))
    assert made.compiling is not None
    first, *others = made.job.script.split("#SBATCH hetjob\n")
    assert first.startswith("#!/bin/bash -l\n#SBATCH --nice=10\n#SBATCH --requeue\n#SBATCH '--com")
    assert all(
        "#SBATCH --partition=cs\n#SBATCH --account=lab\n" in part for part in (first, *others)
    )
    assert "--nice" not in "".join(others)
    assert "--dependency" not in made.job.script
    assert "#SBATCH --dependency=afterok:3\n" in made.compiling.script
    assert "--gres" not in made.compiling.script
    last = made.job.script.splitlines()[-3:]
    assert last[0] == (
        "module load apptainer || { echo 'csrun: prolog: module load apptainer: failed' >&2;"
        " sleep 1; exit 1; }"
    )
    assert last[2].startswith("exec env CSRUN_ALLOCATION=cs2-02 ")


@pytest.mark.parametrize(("word", "line", "code"), [("a b", "true", 0), ("a b", "false", 1)])
def test_lines_before_a_task(word: str, line: str, code: int) -> None:
    words = after_prolog(("printenv", "A"), ("A='a b'", "export A", line))
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code
    if code:
        assert "csrun: prolog: false: failed" in done.stderr.splitlines()
    else:
        assert done.stdout.splitlines()[-1] == word
    assert after_prolog(("true",), ()) == ("true",)


def test_a_job_that_is_left_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "CSRUN_ALL"))]:
        monkeypatch.delenv(name)
    assert environment.user_job() is None
    for name in ("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_HET_SIZE", "SLURM_CONF", "SLURM_QOS"):
        monkeypatch.setenv(name, "12")
    assert environment.user_job() == 12
    monkeypatch.setenv("CSRUN_ALLOCATION", "-")
    assert environment.user_job() is None  # csrun's own script
    environment.unset_job_variables()
    left = {name for name in os.environ if name.startswith("SLURM_")}
    assert left == {"SLURM_CONF", "SLURM_QOS"}


def test_variables_that_would_win_against_csruns_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SBATCH_TIMELIMIT", "SBATCH_ARRAY_INX", "SBATCH_QOS", "SLURM_DISTRIBUTION",
                 "SLURM_EXPORT_ENV", "SLURM_PARTITION", "SLURM_CONF"):  # fmt: skip
        monkeypatch.setenv(name, "x")
    assert {"SBATCH_TIMELIMIT", "SBATCH_ARRAY_INX"}.isdisjoint(environment.for_sbatch())
    assert {"SLURM_DISTRIBUTION", "SLURM_EXPORT_ENV"}.isdisjoint(environment.for_srun())
    assert environment.for_sbatch()["SBATCH_QOS"] == "x"
    assert {"SLURM_PARTITION", "SLURM_CONF"} <= environment.for_srun().keys()
    monkeypatch.setenv("SBATCH_PARTITION", "y")
    found = [environment.partition(name, batch=b) for name in (None, "z") for b in (False, True)]
    assert found == ["x", "y", "z", "y"]


@pytest.mark.parametrize(("words", "expected"), [
    ("run.py --compile_only", True),
    ("run.py --mode=validate_only", True),
    ("run.py -m compile_only", True),
    ("run.py --mode train", False),
    ("compile_only.py", False),
])  # fmt: skip
def test_a_run_that_needs_no_system(words: str, expected: bool) -> None:
    assert (UserCommand(("python", *words.split())).preparation is not None) is expected


def test_an_option_in_either_form() -> None:
    assert option(("run.py", "--cs_ip", "10.0.0.1"), ("--cs_ip",)) == "10.0.0.1"
    assert option(("run.py", "--cs_ip=10.0.0.1"), ("--cs_ip",)) == "10.0.0.1"
    assert option(("run.py", "--cs_ip"), ("--cs_ip",)) is None


def test_the_script_runs_the_same_job_again() -> None:
    """Its options give the same layout to the launcher."""
    request = JobRequest(
        ("python-ws", "run.py", "a b"), 5, 3, 2, None, True, ("/usr",), "local", label=True,
        options=JobOptions("a name", 90, "%j.out"),
    )  # fmt: skip
    job_plan = plan(request, SITE, tuple(range(8)))
    resources = sbatch.resources_of(request, "cs:cs2-02:1", SITE, options.SlurmOptions())
    last = sbatch.script(request, job_plan, resources, ("cs2-02",)).splitlines()[-1]
    folder = Path(sys.executable).parent
    assert last == (
        f"exec env CSRUN_ALLOCATION=cs2-02 {folder}/csrun_wse --total-nodes=5 --tasks-per-node=3"
        " --cpus-per-task=2 --single-task-nodes=2 --site=local --mount-dirs=/usr --cyclic"
        " '--job-name=a name' --time-limit=0:90 --output=%j.out --label python-ws run.py 'a b'"
    )


def test_a_script_asks_for_all_systems_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And receives their names."""
    site, systems = msgspec.structs.replace(SITE, scheduler=Scheduler.SLURM), ("cs2-01", "cs2-02")
    request = JobRequest(("python-ws", "run.py", "--num_csx", "2"), 5, 3, 2)
    job_plan = plan(request, site, tuple(range(8)))
    resources = sbatch.resources_of(request, site.gres_of(*systems), site, options.SlurmOptions())
    first, *others = sbatch.script(request, job_plan, resources, systems).split("#SBATCH hetjob\n")
    assert "#SBATCH --gres=cs:cs2-01:1,cs:cs2-02:1\n" in first
    assert "--gres" not in "".join(others)
    told = re.search(r"exec env (CSRUN_ALLOCATION)=(\S+) ", others[-1])
    assert told is not None
    monkeypatch.setenv(*told.groups())
    assert environment.allocation() == environment.SlurmAllocation(systems)
    monkeypatch.setenv(*environment.allocation_command(())[1].split("="))
    assert environment.allocation() == environment.SlurmAllocation(())


def test_a_compile_is_its_chief_alone() -> None:
    options = JobOptions(time_limit_s=90)
    request = JobRequest(
        ("python-ws", "run.py"), 5, 3, 2, sbatch=True, compile_first=True, options=options
    )
    compiling, job_plan = sbatch.compile_job(request, plan(request, SITE, tuple(range(8))))
    assert job_plan.time_limit_s == 90
    assert compiling.command == ("python-ws", "run.py", "--compile_only")
    assert (compiling.sbatch, compiling.compile_first) == (False, False)
    assert job_plan.layout == JobLayout(1, 1, 8, 0, False)
    assert [(task.rank, task.role) for task in job_plan.tasks] == [(0, Role.CHIEF)]
    again = JobRequest(compiling.command, 1, 1, 8, 0)
    assert plan(again, SITE, tuple(range(8))).layout == job_plan.layout


@pytest.mark.parametrize("option", ["--sbatch", "--compile-first", "--slurm-option=nice"])
@pytest.mark.usefixtures("state")
def test_what_only_slurm_can(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    from csrun.cli.csrun_wse import run

    assert run([option, "true"]) == 2
    assert f"{option.partition('=')[0]} needs scheduler slurm" in capsys.readouterr().err
