"""The parts of a Slurm job that need no Slurm: mail, folders, what sinfo says, the job's script."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from csrun.base.errors import CsrunError, UsageError
from csrun.base.mode import ExecutionMode
from csrun.context import JobFile, Role, TaskEntry, environment, jobs_dir_of
from csrun.jobs.folder import KEPT_JOBS
from csrun.jobs.overview import SystemStatus
from csrun.jobs.request import JobOptions, JobRequest
from csrun.launch.command import is_preparing, option
from csrun.launch.plan import plan
from csrun.launch.process.protocol import SignalTasks, StartTask
from csrun.launch.slurm import allocation, batch, folders, options, run, sinfo, squeue
from csrun.launch.slurm.alone import LOST
from csrun.launch.slurm.mail import (
    MAIL_DIR,
    LetGo,
    Reader,
    StartAll,
    ToAttendants,
    launcher_box,
    post,
)
from csrun.launch.srun import after_prolog, node_needs
from csrun.site import JobLayout, load
from csrun.system import Power

PIPELINED = ExecutionMode.PIPELINED
ENTRY = TaskEntry(0, Role.CHIEF, "node1", 0, 0, (0, 1))
JOB = JobFile(7, None, ("true",), "/", "local", 1, 2, (ENTRY,))
SITE = msgspec.structs.replace(load("local"), gres="cs:{system}:1")
GRES = frozenset({"cs:cs2-01", "cs:cs2-02"})
SINFO = """\
node1|8|65536|mixed|cs:cs2-01:1(S:0),cs:cs2-02:1|all*
node1|8|65536|mixed|cs:cs2-01:1,cs:cs2-02:1|small
node2|4+|8000+|down*|(null)|all*
"""


def test_mail_comes_whole_and_once(tmp_path: Path) -> None:
    (tmp_path / MAIL_DIR).mkdir()
    box = launcher_box(tmp_path)
    reader = Reader(box, msgspec.msgpack.Decoder(ToAttendants))
    assert reader.read() == []
    said = [
        StartAll(JOB, True),
        StartTask(0, ("a b", ""), "cs2-01", 3),
        SignalTasks(("x",), 15),
        LetGo(),
    ]
    for message in said[:2]:
        post(box, message)
    assert reader.read() == said[:2]
    assert reader.read() == []
    whole = box.read_bytes()
    for message in said[2:]:
        post(box, message)
    rest = box.read_bytes()[len(whole) :]
    for end in range(len(rest)):
        box.write_bytes(whole + rest[:end])
        said[2:] = said[2 + len(reader.read()) :]
    box.write_bytes(whole + rest)
    assert reader.read() == said[2:] == [LetGo()]


def test_sinfo_is_read_a_node_at_a_time() -> None:
    assert sinfo.parse(SINFO) == (
        sinfo.Node("node1", 8, 64, "mixed", GRES, frozenset({"all*", "small"})),
        sinfo.Node("node2", 4, 7, "down*", frozenset(), frozenset({"all*"})),
    )


def squeue_answer(state: object, number: object = lambda n: n, **changes: object) -> str:
    """What squeue says of a job of two components in `state`, from 100 s to 160 s."""
    assert callable(number)
    common = {"name": "digits", "user_name": "ada", "job_state": state, "het_job_id": number(7),
              "node_count": number(1), "tasks": number(1), "state_reason": "None",
              "submit_time": number(90), "start_time": number(100), "end_time": number(160),
              "tres_per_node": "gres:cs:cs2-02:1"}  # fmt: skip
    return json.dumps({"jobs": [
        common | {"job_id": 8, "het_job_offset": number(1), "nodes": "node[3-4]"} | changes,
        common | {"job_id": 7, "het_job_offset": number(0), "nodes": "node1"} | changes,
    ]})  # fmt: skip


@pytest.mark.parametrize(("state", "number"), [
    ("{}", lambda n: n),
    (["{}"], lambda n: {"set": True, "infinite": False, "number": n}),
])  # fmt: skip
def test_what_squeue_says_of_a_job(state: str | list[str], number: object) -> None:
    """Two of Slurm's versions."""

    def told(word: str) -> squeue.SlurmJob:
        filled = word if isinstance(state, str) else [word]
        (job,) = squeue.parse(squeue_answer(filled, number), SITE)
        return job

    ended = told("COMPLETED")
    assert (ended.job_id, ended.nodes, ended.system) == (7, 2, "cs2-02")
    assert (ended.is_waiting, ended.is_running, ended.elapsed_s) == (False, False, 60)
    assert told("RUNNING").is_running
    assert told("RUNNING").elapsed_s > 60  # what squeue says of its end is its limit
    assert told("COMPLETING").is_running  # its nodes are not free yet
    assert (told("PENDING").is_waiting, told("PENDING").elapsed_s) == (True, 0)


def test_a_squeue_that_answers_with_errors_is_one_that_does_not_answer() -> None:
    """Its exit code is 0, and its list of jobs empty."""
    error = {"description": "Failed while looking for jobs", "error_number": -1,
             "error": "Unspecified error", "source": "slurm_load_jobs"}  # fmt: skip
    said = (
        r"does not answer: squeue: Failed while looking for jobs"
        r" \(slurm_load_jobs: Unspecified error\); 'scontrol ping'"
    )
    with pytest.raises(CsrunError, match=said):
        squeue.parse(json.dumps({"errors": [error], "jobs": []}), SITE)
    with pytest.raises(CsrunError, match="squeue: not JSON"):
        squeue.parse("slurm", SITE)
    assert squeue.parse(json.dumps({"errors": [], "jobs": []}), SITE) == []


@pytest.mark.parametrize(("said", "kind"), [
    ("sbatch: error: Batch job submission failed: Invalid partition name specified", UsageError),
    ("slurm_load_partitions: Unable to contact slurm controller (connect failure)", CsrunError),
    ("sbatch: error: Munge encode failed: Failed to access \"x\"", CsrunError),
    ("", CsrunError),
])  # fmt: skip
def test_a_refusal_is_not_an_outage(said: str, kind: type[CsrunError]) -> None:
    error = sinfo.explain(said, SITE)
    assert type(error) is kind
    assert ("Slurm refuses it: Batch job submission failed" in str(error)) == (kind is UsageError)
    assert ("does not answer" in str(error)) == (kind is CsrunError)


def test_what_a_job_waits_for_is_named() -> None:
    change = {"state_reason": "ReqNodeNotAvail",
              "state_description": "ReqNodeNotAvail, UnavailableNodes:node1"}  # fmt: skip
    (job,) = squeue.parse(squeue_answer("PENDING", **change), SITE)
    assert job.why == "waits for node1: drained, down or reserved"
    (job,) = squeue.parse(squeue_answer("PENDING", state_reason="Priority"), SITE)
    assert job.why == "waits for Priority"


def test_a_job_without_its_launcher_says_so() -> None:
    (job,) = squeue.parse(squeue_answer("RUNNING", comment=LOST), SITE)
    assert job.why == "csrun: launcher lost"
    (job,) = squeue.parse(squeue_answer("RUNNING", comment="the user's own"), SITE)
    assert job.why == ""


@pytest.mark.parametrize(("state", "said"), [
    ("idle", ""), ("mixed", ""), ("drained", "node1 is DRAINED"), ("down*", "node1 is DOWN*"),
    ("idle*", "node1 is IDLE*"), ("draining", "node1 is DRAINING"),
])  # fmt: skip
def test_a_system_whose_nodes_take_no_jobs_is_not_available(state: str, said: str) -> None:
    found = sinfo.parse(SINFO.replace("mixed", state))
    assert sinfo.unavailable(found, "cs:cs2-01:1") == said
    assert sinfo.unavailable(found, None) == ""


@pytest.mark.parametrize(("layout", "gres", "said"), [
    (JobLayout(3, 1, 1, 0, False), None, "use --total-nodes 2"),
    (JobLayout(2, 3, 2, 0, False), None, "wants 2 nodes of 6 CPUs, the cluster has 1"),
    (JobLayout(2, 1, 4, 1, False), None, "wants 1 nodes of 128 CPUs, the cluster has 0"),
    (JobLayout(2, 1, 1, 0, False), "cs:cs2-03:1", "no node of the cluster has cs:cs2-03:1"),
])  # fmt: skip
def test_what_the_cluster_never_can_run(
    layout: JobLayout, gres: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinfo, "ask", lambda site, *command: SINFO)
    with pytest.raises(UsageError, match=said):
        sinfo.check(layout, SITE, gres)
    sinfo.check(JobLayout(2, 2, 2, 0, False), SITE, "cs:cs2-02:1")


def test_the_checks_look_at_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*SINFO.splitlines(), "node3|64|65536|idle|(null)|big"]
    monkeypatch.setattr(sinfo, "ask", lambda site, *command: "\n".join(rows))
    two = JobLayout(2, 2, 2, 0, False)
    sinfo.check(two, SITE, "cs:cs2-02:1", "small,big")
    with pytest.raises(UsageError, match="partition small of site local has 1 nodes"):
        sinfo.check(two, SITE, None, "small")
    with pytest.raises(UsageError, match="no node of partition big has cs:cs2-02:1"):
        sinfo.check(JobLayout(1, 1, 1, 0, False), SITE, "cs:cs2-02:1", "big")
    with pytest.raises(UsageError, match="partition all of site local has 2 nodes"):
        sinfo.check(JobLayout(3, 1, 1, 0, False), SITE, None)  # its default one
    with pytest.raises(UsageError, match="no such partition, it has: all, big, small"):
        sinfo.check(two, SITE, None, "bgi")


SLURM_SITE = msgspec.structs.replace(
    SITE,
    slurm_options={"partition": "cs", "account": "lab", "nice": 10, "requeue": True},
    prolog=("module load apptainer", "export A='b c'"),
)


def test_slurms_own_options_are_the_sites_and_the_command_lines() -> None:
    given = options.of(["partition=big", "--mail_type=END"], SLURM_SITE, batch=True)
    assert given.every == ("--partition=big", "--account=lab")
    assert given.first == ("--nice=10", "--requeue", "--mail-type=END")
    assert given.partition == "big"
    assert options.of([], SLURM_SITE, batch=False).first == ("--nice=10",)  # srun knows no requeue


@pytest.mark.parametrize(("option", "said"), [
    *((name, f"csrun does not pass {name} on: {why}") for name, why in options.REFUSED.items()),
    ("export=NONE", "does not pass export on: the tasks need all of this shell's environment"),
    ("acount=lab", "did you mean account?"),
    ("burst-buffer=x", "it knows: account, begin"),
    ("requeue", "add --sbatch"),
    ("comment=a\nb", "must be one line of printable text"),
])  # fmt: skip
def test_an_option_that_is_not_passed_on(option: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        options.of([option], SITE, batch=False)
    site = msgspec.structs.replace(SITE, slurm_options={"array": "1-3"})
    with pytest.raises(UsageError, match=r"site local: slurm_options\.array: csrun does not"):
        options.of([], site, batch=True)


def test_the_two_scripts_of_a_job_that_is_compiled_first() -> None:
    asked = JobOptions(slurm_options=("dependency=afterok:3", "comment=a 'b'"))
    request = JobRequest(
        ("python-ws", "run.py"), 5, 3, 2, sbatch=True, compile_first=True, options=asked
    )
    given = options.of(asked.slurm_options, SLURM_SITE, batch=True)
    job_plan = plan(request, SLURM_SITE, tuple(range(8)))
    resources = batch.resources_of(request, "cs:cs2-02:1", SLURM_SITE, given)
    made = batch.scripts(request, job_plan, SLURM_SITE, resources, "cs2-02")
    assert made.compiling is not None
    first, *others = made.job.split("#SBATCH hetjob\n")
    assert first.startswith("#!/bin/bash -l\n#SBATCH --nice=10\n#SBATCH --requeue\n#SBATCH '--com")
    assert all(
        "#SBATCH --partition=cs\n#SBATCH --account=lab\n" in part for part in (first, *others)
    )
    assert "--nice" not in "".join(others)
    assert "--dependency" not in made.job
    assert "#SBATCH --dependency=afterok:3\n" in made.compiling
    assert "--gres" not in made.compiling
    last = made.job.splitlines()[-3:]
    assert last[0] == (
        "module load apptainer || { echo 'csrun: prolog: module load apptainer: failed' >&2;"
        " sleep 1; exit 1; }"
    )
    assert last[2].startswith("exec env CSRUN_ALLOCATION=cs2-02 ")


@pytest.mark.parametrize(("word", "line", "code"), [("a b", "true", 0), ("a b", "false", 1)])
def test_lines_before_a_task(word: str, line: str, code: int) -> None:
    words = after_prolog(("printenv", "A"), ("A='a b'", "export A", line))
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == code
    if code:
        assert "csrun: prolog: false: failed" in done.stderr.splitlines()
    else:
        assert done.stdout.splitlines()[-1] == word
    assert after_prolog(("true",), ()) == ("true",)


def test_whether_a_users_job_carries_a_layout() -> None:
    needs = node_needs(JobLayout(5, 3, 2, 2, False), 8)
    assert needs == [(1, 8), (1, 8), (3, 6)]
    assert node_needs(JobLayout(3, 3, 2, 0, False), 8) == [(1, 6), (2, 6)]
    assert node_needs(JobLayout(1, 3, 2, 0, False), 8) == [(1, 6)]
    own = [squeue.Part(1, 8, "gres:cs:cs2-02:1"), squeue.Part(1, 8, ""), squeue.Part(3, 24, "")]
    assert allocation.lacks(own, needs) == ""
    assert allocation.lacks([squeue.Part(5, 40, "")], needs) == ""
    assert allocation.lacks([squeue.Part(5, 30, "")], needs).startswith("has 6 CPUs a node, where")
    assert allocation.lacks([squeue.Part(4, 32, "")], needs).startswith("has 4 nodes, where the")
    assert allocation.lacks(own[:2], needs).startswith("has 2 components, where the layout has 3")
    fewer = [*own[:2], squeue.Part(2, 16, "")]
    assert allocation.lacks(fewer, needs).startswith("has 2 nodes in component 2, where")
    assert allocation.lacks([], needs).startswith("has 0 components")
    held = [allocation.holds(own, gres) for gres in ("cs:cs2-02:1", "cs:cs2-02", "cs:cs2-01:1")]
    assert held == [True, True, False]
    assert allocation.holds([squeue.Part(1, 8, "gres/cs:cs2-02")], "cs:cs2-02:1")
    assert not allocation.holds([], "cs:cs2-02:1")


def test_the_components_of_one_job_in_their_order() -> None:
    text = squeue_answer("RUNNING", cpus=4)
    assert squeue.parse_parts(text, SITE, 7) == [squeue.Part(1, 4, "gres:cs:cs2-02:1")] * 2
    assert squeue.parse_parts(text, SITE, 8) == []


def test_a_job_that_is_left_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "CSRUN_ALL"))]:
        monkeypatch.delenv(name)
    assert environment.users_job() is None
    for name in ("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_HET_SIZE", "SLURM_CONF", "SLURM_QOS"):
        monkeypatch.setenv(name, "12")
    assert environment.users_job() == 12
    monkeypatch.setenv("CSRUN_ALLOCATION", "-")
    assert environment.users_job() is None  # csrun's own script
    environment.leave_users_job()
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
    assert is_preparing(("python", *words.split())) is expected


def test_an_option_in_either_form() -> None:
    assert option(("run.py", "--cs_ip", "10.0.0.1"), ("--cs_ip",)) == "10.0.0.1"
    assert option(("run.py", "--cs_ip=10.0.0.1"), ("--cs_ip",)) == "10.0.0.1"
    assert option(("run.py", "--cs_ip"), ("--cs_ip",)) is None


def test_the_script_runs_the_same_job_again() -> None:
    """Its options, given to the launcher once more, make the same layout."""
    request = JobRequest(
        ("python-ws", "run.py", "a b"), 5, 3, 2, None, True, ("/usr",), "local", label=True,
        options=JobOptions("a name", 90, "%j.out"),
    )  # fmt: skip
    job_plan = plan(request, SITE, tuple(range(8)))
    resources = batch.resources_of(request, "cs:cs2-02:1", SITE, options.SlurmOptions())
    last = batch.script(request, job_plan, resources, "cs2-02").splitlines()[-1]
    folder = Path(sys.executable).parent
    assert last == (
        f"exec env CSRUN_ALLOCATION=cs2-02 {folder}/csrun_wse --total-nodes=5 --tasks-per-node=3"
        " --cpus-per-task=2 --single-task-nodes=2 --site=local --mount-dirs=/usr --cyclic"
        " '--job-name=a name' --time-limit=0:90 --output=%j.out --label python-ws run.py 'a b'"
    )


def test_a_compile_is_its_chief_alone() -> None:
    request = JobRequest(("python-ws", "run.py"), 5, 3, 2, sbatch=True, compile_first=True)
    compiling, job_plan = batch.compile_job(request, plan(request, SITE, tuple(range(8))))
    assert compiling.command == ("python-ws", "run.py", "--compile_only")
    assert (compiling.sbatch, compiling.compile_first) == (False, False)
    assert job_plan.layout == JobLayout(1, 1, 8, 0, False)
    assert [(task.rank, task.role) for task in job_plan.tasks] == [(0, Role.CHIEF)]
    again = JobRequest(compiling.command, 1, 1, 8, 0)
    assert plan(again, SITE, tuple(range(8))).layout == job_plan.layout


def test_without_a_name_the_system_with_the_fewest_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    systems = tuple(msgspec.structs.replace(s, mode=PIPELINED) for s in SITE.systems)
    site = msgspec.structs.replace(SITE, systems=systems)
    found = [
        SystemStatus("cs2-01", "", PIPELINED, Power.ACTIVE, 1, (3,)),
        SystemStatus("cs2-02", "", PIPELINED, Power.ACTIVE, 2, ()),
    ]
    monkeypatch.setattr(squeue, "systems", lambda site: found)

    def asked(*words: str) -> str | None:
        request = JobRequest(("python", "run.py", *words), 1)
        return run.system_of(plan(request, site, (0,)), site)

    assert asked() == "cs2-02"
    said = "the job asks for cs2-02, which has the fewest jobs: cs2-01 has 2, cs2-02 has 1"
    assert capsys.readouterr().err == f"csrun_wse: {said}\n"
    assert asked("--cs_ip", "cs2-01") == "cs2-01"
    assert asked("--compile_only") is None
    assert capsys.readouterr().err == ""


def test_folders_are_the_owners_and_the_oldest_go(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    for number in range(1, KEPT_JOBS + 3):
        folder, live = folders.create(jobs)
        assert folder.path.stat().st_mode & 0o777 == 0o700
        folder.furnish()
        assert folders.name_by_id(folder, number).path == jobs / str(number)
        os.utime(folder.path, (number, number))
        if number != 1:
            live.release()
        else:
            held = live
    folders.prune(jobs)
    left = sorted(int(path.name) for path in jobs.glob("[0-9]*"))
    assert left == [1, *range(3, KEPT_JOBS + 3)]  # the first one lives
    assert len(list(jobs.glob(".job-*/secret"))) == 1
    held.release()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="set jobs_dir in the site file"):
        folders.create(tmp_path / "file" / "jobs")


def test_a_disk_that_is_full_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    folder, live = folders.create(tmp_path)
    said = "folder cannot be written: No space left on device"
    with live, pytest.raises(CsrunError, match=said), run._writing(folder):
        full()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UsageError, match="can be made there: No space left on device"):
        folders.create(tmp_path)


def test_the_folder_of_the_site_may_name_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTER_USER", "ada")
    site = msgspec.structs.replace(SITE, jobs_dir=f"{tmp_path}/$CLUSTER_USER/jobs")
    assert jobs_dir_of(site.name, site.jobs_dir) == tmp_path / "ada" / "jobs"
    monkeypatch.delenv("CLUSTER_USER")
    with pytest.raises(UsageError, match=r"site local: jobs_dir: .*\$CLUSTER_USER is not set"):
        jobs_dir_of(site.name, site.jobs_dir)


def test_an_attendant_without_its_folder_says_where_it_looked(tmp_path: Path) -> None:
    place = {"SLURM_PROCID": "3", "SLURMD_NODENAME": "node2", "SLURM_JOB_ID": "9",
             "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", "-m", "csrun.launch.slurm.attendant", str(tmp_path / "none"), ""],
        env={**os.environ, **place}, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"csrun: node2: the job's folder {tmp_path}/none is not there" in done.stderr
    assert "jobs_dir" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--sbatch", "--compile-first", "--slurm-option=nice"])
@pytest.mark.usefixtures("state")
def test_what_only_slurm_can(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    from csrun.cli.csrun_wse import run

    assert run([option, "true"]) == 2
    assert (
        f"{option.partition('=')[0]} needs a site whose scheduler is slurm"
        in capsys.readouterr().err
    )
