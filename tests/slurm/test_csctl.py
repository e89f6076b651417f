"""csctl with jobs registered by Slurm."""

import dataclasses
import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.jobs import STALL_S, Sandbox, until
from support.testbed import Testbed

pytestmark = pytest.mark.slurm

ENDED = "job {0}: Slurm ends it; 'csctl wait {0}' waits until it has\n"
FC_MNIST = Path(__file__).parents[2] / "reference_models" / "fc_mnist" / "run.py"
ASKED = ("--total-nodes", "3", "--tasks-per-node", "1", "--cpus-per-task", "1",
         "--single-task-nodes", "1", "--job-name", "digits")  # fmt: skip


def test_a_job_is_shown_and_cancelled(cluster_place: Sandbox, testbed: Testbed) -> None:
    cluster_place.script("import time\nopen('in', 'w').close()\ntime.sleep(600)")
    with cluster_place.start(*ASKED, "python", "run.py") as job:
        cluster_place.wait_for("in")
        listed = cluster_place.run("get", "jobs", "-o", "json", command="csctl")
        running = [found for found in json.loads(listed.stdout) if found["state"] == "RUNNING"]
        assert len(running) == 1  # of the components one job
        shown = running[0]
        assert (shown["name"], shown["nodes"], shown["tasks"]) == ("digits", 3, 3)
        assert shown["systems"] == ["cs2-01"]
        number = str(shown["job_id"])
        assert any(line.endswith(f" {number}+0") for line in testbed.queue())
        table = cluster_place.run("get", "job", number, command="csctl")
        assert "digits" in table.stdout
        unknown = cluster_place.run("cancel", "9999", command="csctl")
        assert (unknown.returncode, "job 9999: no such job in Slurm" in unknown.stderr) == (2, True)
        ended = cluster_place.run("cancel", "job", number, command="csctl")
        assert (ended.returncode, ended.stdout) == (0, ENDED.format(number))
        job.communicate(timeout=STALL_S)
    assert job.returncode == 143
    until(lambda: not testbed.queue())


def test_a_pending_job_shows_its_type_and_tasks(cluster_place: Sandbox, testbed: Testbed) -> None:
    """One job submitted by sbatch, one waiting in srun."""
    cluster_place.script("")
    later = ("--slurm-option", "begin=now+1hour")
    compiling = (*ASKED, "--job-labels", "lab=3", "python", "run.py", "--compile_only")
    submitted = cluster_place.run("--sbatch", *later, *compiling).stdout.split()[-1]
    with cluster_place.start(*later, *ASKED, "python", "run.py") as waiting:
        until(lambda: len(testbed.queue()) > 3)  # components of both
        listed = cluster_place.run("get", "jobs", "-o", "json", command="csctl").stdout
        pending = (job for job in json.loads(listed) if job["state"] == "PENDING")
        found = {str(job["job_id"]): job for job in pending}
        batch, (other,) = found.pop(submitted), found.values()
        assert (batch["type"], batch["tasks"]) == ("compile", 3)
        assert batch["labels"] == {"lab": "3"}
        until(lambda: _type_of(cluster_place, other["job_id"]) == "execute")
        waiting.terminate()
        waiting.communicate(timeout=STALL_S)


def _type_of(place: Sandbox, job_id: int) -> str:
    listed = place.run("get", "job", str(job_id), "-o", "json", command="csctl").stdout
    return str(json.loads(listed)["type"])


QUESTIONS = (
    "csctl get jobs", "csctl get job 1", "csctl get nodes", "csctl get systems", "csctl logs 1",
    "csctl cancel job 1", "cs session list",
)  # fmt: skip


def test_what_is_asked_of_a_slurm_that_is_down_is_an_error(
    cluster_place: Sandbox, testbed: Testbed, tmp_path: Path
) -> None:
    """All in parallel, as each of Slurm's commands retries for a while."""
    conf = tmp_path / "slurm.conf"
    lines = testbed.conf.read_text().splitlines()
    quiet = ("SlurmctldPort=1" if line.startswith("SlurmctldPort=") else line for line in lines)
    conf.write_text("\n".join([*quiet, "MessageTimeout=2"]))
    place = dataclasses.replace(cluster_place, variables=(("SLURM_CONF", str(conf)),))
    asked = [line.split() for line in QUESTIONS]
    with ExitStack() as running:
        started = [
            running.enter_context(place.start(*words, command=command)) for command, *words in asked
        ]
        for process in started:
            out, err = process.communicate(timeout=STALL_S)
            assert (process.returncode, out) == (1, "")
            assert "site testbed: Slurm does not answer: " in err


def test_a_drained_node_is_told_while_a_job_waits_and_of_its_systems(
    cluster_place: Sandbox, testbed: Testbed
) -> None:
    cluster_place.script("")
    state = ("scontrol", "update", "NodeName=node1")
    testbed.call(*state, "State=drain", "Reason=test")
    try:
        shown = cluster_place.csctl("get", "systems").stdout.splitlines()[1]
        assert "ACTIVE  no (node1 is DRAINED)" in shown
        with cluster_place.start(*ASKED, "python", "run.py") as job:
            assert job.stderr is not None
            said = next(line for line in job.stderr if "waits for" in line)
            job.terminate()
            job.communicate(timeout=STALL_S)
    finally:
        testbed.call(*state, "State=resume")
    assert re.fullmatch(r"csrun_wse: job \d+ waits for node1: drained, down or reserved\n", said)
    until(lambda: "ACTIVE  yes" in cluster_place.csctl("get", "systems").stdout)


@pytest.mark.parametrize("asked", [("get", "job"), ("cancel", "job")])
def test_a_job_that_slurm_does_not_know(cluster_place: Sandbox, asked: tuple[str, str]) -> None:
    done = cluster_place.run(*asked, "99999", command="csctl")
    assert done.returncode == 2
    assert "job 99999: " in done.stderr


def test_nodes_systems_and_logs_of_a_job(cluster_place: Sandbox, testbed: Testbed) -> None:
    cluster_place.script("import time\nprint('hello')\nopen('in', 'w').close()\ntime.sleep(600)")
    with (
        cluster_place.start(*ASKED, "python", "run.py") as first,
        cluster_place.start("--job-name", "second", *ASKED[:-2], "python", "run.py") as second,
    ):
        cluster_place.wait_for("in")
        until(lambda: sum("PENDING" in line for line in testbed.queue()) > 0)
        listed = json.loads(cluster_place.csctl("get", "jobs", "-o", "json").stdout)
        (runs,) = (job["job_id"] for job in listed if job["state"] == "RUNNING")
        (waits,) = (job["job_id"] for job in listed if job["state"] == "PENDING")
        nodes = json.loads(cluster_place.csctl("get", "nodes", "-o", "json").stdout)
        assert [node["name"] for node in nodes] == ["node1", "node2", "node3", "node4"]
        assert sum(node["jobs"] == [runs] for node in nodes) == 3
        assert nodes[0]["state"] == "ALLOCATED"
        systems = json.loads(cluster_place.csctl("get", "systems", "-o", "json").stdout)
        assert [(s["job"], s["waiting"]) for s in systems] == [(runs, [waits]), (None, [])]
        assert cluster_place.csctl("logs", str(runs)).stdout == "hello\n"
        early = cluster_place.csctl("logs", str(waits))
        assert (early.returncode, "has no logs yet: it waits for" in early.stderr) == (2, True)
        with cluster_place.start("logs", str(runs), "--follow", command="csctl") as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "hello\n"
            assert reader.poll() is None
            for job in (second, first):
                job.terminate()
                job.communicate(timeout=STALL_S)
            reader.communicate(timeout=STALL_S)
        assert reader.returncode == 0
    ended = cluster_place.csctl("logs", str(waits))
    assert (ended.returncode, "has no logs in" in ended.stderr) == (2, True)
    assert cluster_place.csctl("logs", "99999").returncode == 2


def test_the_session_of_a_job_is_cancelled_by_slurm(cluster_place: Sandbox) -> None:
    cluster_place.script(
        "from csrun.site import load\nfrom csrun.system import acquire\nimport os, time\n"
        "site = load()\nsystem = site.systems[0]\n"
        "if os.environ['SLURM_PROCID'] == '0':\n"
        "    lease = acquire(site, system, system.mode, 'job ' + os.environ['SLURM_JOB_ID'])\n"
        "    open('in', 'w').close()\n"
        "time.sleep(600)"
    )
    with cluster_place.start(*ASKED, "python", "run.py") as job:
        cluster_place.wait_for("in")
        listed = cluster_place.run("session", "list", "--output-format", "json", command="cs")
        number = json.loads(listed.stdout)[0]["job"]
        refused = cluster_place.run("system", "standby", "--yes", command="cs")
        assert refused.returncode == 1
        assert f"not possible while job {number} (process" in refused.stderr
        ended = cluster_place.run("session", "cancel", str(number), command="cs")
        assert (ended.returncode, ended.stdout) == (0, ENDED.format(number))
        job.communicate(timeout=STALL_S)
    assert job.returncode == 143


def test_a_system_that_is_put_in_standby_while_its_job_waits(
    cluster_place: Sandbox, testbed: Testbed
) -> None:
    cluster_place.script("import time\nopen('in', 'w').close()\ntime.sleep(600)")
    train = ("python", str(FC_MNIST), "--mode", "train", "--max_steps", "5")
    with cluster_place.start(*ASKED, "python", "run.py") as holder:
        cluster_place.wait_for("in")
        with cluster_place.start(*ASKED, *train) as job:
            until(lambda: any("PENDING" in line for line in testbed.queue()))
            cluster_place.run("system", "standby", "--yes", command="cs")
            holder.terminate()
            holder.communicate(timeout=STALL_S)
            _, err = job.communicate(timeout=STALL_S)
    assert job.returncode == 1
    assert "the job's system cs2-01: cs2-01 is in STANDBY; a job needs an ACTIVE system" in err
    assert "Traceback" not in err
