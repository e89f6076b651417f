"""Cluster administration: causes of failures, accounts, partitions, equal versions."""

import csv
import dataclasses
import io
import json
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.jobs import STALL_S, Sandbox, until
from support.testbed import Testbed, site_file

pytestmark = pytest.mark.slurm

SPREAD = ("--total-nodes", "3", "--tasks-per-node", "1", "--cpus-per-task", "1")
WAIT = """
import os, time
rank = os.environ["SLURM_PROCID"]
with open(f"in{rank}.tmp", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"in{rank}.tmp", f"in{rank}")
time.sleep(600)
"""


def placed(place: Sandbox, **changes: object) -> Sandbox:
    """Place whose site file also has these keys."""
    return dataclasses.replace(place, site=site_file(place.path, "slurm", **changes))


def test_why_a_job_failed_is_csruns_own_cause_and_its_system_is_accounted_for(
    cluster_place: Sandbox, testbed: Testbed
) -> None:
    cluster_place.script(WAIT)
    with cluster_place.start(*SPREAD, "python", "run.py") as job:
        agent = psutil.Process(cluster_place.pid("in2")).parent()
        assert agent is not None
        agent.kill()
        job.communicate(timeout=STALL_S)
    rows = csv.DictReader(io.StringIO(cluster_place.csctl("get", "jobs", "-o", "csv").stdout))
    shown = [row for row in rows if row["system"] == "cs2-01"][-1]
    assert shown["why"].startswith("rank 2 (streamer) on node3: node3 lost: ")
    used = cluster_place.csctl("get", "usage", "--each", "--since", "1h", "-o", "csv").stdout
    (use,) = csv.DictReader(io.StringIO(used))
    assert (use["system"], use["job"], use["user"]) == ("cs2-01", shown["job"], shown["user"])
    assert use["ended"]
    assert 0 < float(use["hours"]) < 1
    before = cluster_place.csctl("get", "usage", "--until", "1d", "-o", "csv").stdout
    assert before == "user,account,system,jobs,hours\n"


def test_the_cause_is_in_slurms_comment(cluster_place: Sandbox, testbed: Testbed) -> None:
    """Other accounts read it there, without csrun's records."""
    cluster_place.script("import os\nif os.environ['SLURM_PROCID'] == '1':\n    os._exit(7)")
    words = ("--slurm-option", "comment=mine", "--job-name", "told", *SPREAD, "python", "run.py")
    assert cluster_place.run(*words).returncode == 7
    said = testbed.call("squeue", "--states=all", "--noheader", "--name=told", "--format=%k")
    assert "mine; csrun: rank 1 (streamer) on node2 ended with exit code 7" in said


def test_each_role_has_its_partition(cluster_place: Sandbox) -> None:
    cluster_place.script("import os\nprint(os.environ['SLURM_PROCID'])")
    roles = {"streamer": {"partition": "cpu"}, "chief": {"partition": "all"}}
    place = placed(cluster_place, slurm_options_by_role=roles)
    shown = place.run("--dry-run", *SPREAD, "python", "run.py").stdout
    (line,) = (text for text in shown.splitlines() if "srun " in text)
    chief, streamers = line.split(" : ")
    assert ("--partition=all" in chief, "--partition=cpu" in chief) == (True, False)
    assert "--partition=cpu" in streamers
    place.script(
        "import os, subprocess\nif os.environ['SLURM_PROCID'] == '0':\n"
        "    job = os.environ['SLURM_JOB_ID']\n"
        "    said = ('squeue', '--noheader', '--jobs=' + job, '--format=%P', '--sort=i')\n"
        "    print(subprocess.run(said, capture_output=True, text=True).stdout)"
    )
    done = place.run(*SPREAD, "python", "run.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] in (["all", "cpu"], ["cpu", "all"])
    refused = place.run("--total-nodes", "5", "--tasks-per-node", "1", "python", "run.py")
    assert refused.returncode == 2
    misplaced = placed(cluster_place, slurm_options_by_role={"chief": {"partition": "cpu"}})
    nowhere = misplaced.run(*SPREAD, "python", "run.py")
    assert (nowhere.returncode, "no node of partition cpu has cs:" in nowhere.stderr) == (2, True)


def test_nodes_of_different_versions_are_refused(cluster_place: Sandbox, tmp_path: Path) -> None:
    other = tmp_path / "other" / "numpy-9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 9.9\n")
    line = f"test $SLURMD_NODENAME != node2 || export PYTHONPATH={other.parent}"
    cluster_place.script("")
    done = placed(cluster_place, prolog=[line]).run(*SPREAD, "python", "run.py")
    assert done.returncode == 2
    assert "numpy differs between the job's nodes: " in done.stderr
    assert "9.9 on node2" in done.stderr


def test_the_checks_of_a_site_run_on_each_node(cluster_place: Sandbox, testbed: Testbed) -> None:
    place = placed(cluster_place, grace_s=5, slurm_options_by_role={"streamer": {"mem": 100}})
    asked = ("site", "check", "-o", "json")
    done = place.run(*asked, command="csrun")
    found = {(each["check"], each["node"]): each["status"] for each in json.loads(done.stdout)}
    nodes = {"node1", "node2", "node3", "node4"}
    for check in ("state", "jobs_dir shared", "network", "clock"):
        assert {node for name, node in found if name == check} == nodes
    assert found["version of numpy", "all"] == found["gres of cs2-02", "node1"] == "ok"
    shared = {status for (check, _), status in found.items() if check == "jobs_dir shared"}
    assert shared == {"ok"}
    bad = placed(cluster_place, gres="wse:{system}:1", grace_s=60).run(*asked, command="csrun")
    failed = {e["check"] for e in json.loads(bad.stdout) if e["status"] == "FAILED"}
    assert (bad.returncode, failed >= {"gres of cs2-01", "KillWait"}) == (1, True)
    until(lambda: not testbed.queue())


def test_ended_jobs_go_when_the_site_says(cluster_place: Sandbox) -> None:
    cluster_place.script("")
    for _ in range(2):
        assert cluster_place.run(*SPREAD, "python", "run.py").returncode == 0
    place = placed(cluster_place, jobs={"keep_count": 1})  # in the same file
    shown = place.run("site", "clean", "--dry-run", command="csrun").stdout
    assert shown.splitlines()[-1].startswith("1 of 2 job folders would be removed, ")
    assert place.run(*SPREAD, "python", "run.py").returncode == 0
    left = place.run("site", "clean", "--dry-run", command="csrun").stdout
    assert left == "0 of 1 job folders would be removed, 0.0 MB\n"


def test_metrics_of_a_cluster(cluster_place: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "csrun.prom"
    done = cluster_place.run("site", "metrics", "--output", str(path), command="csrun")
    assert done.returncode == 0, done.stderr
    found = {f.name: f for f in text_string_to_metric_families(path.read_text())}
    queues = found["csrun_system_queue_length"].samples
    assert [(each.labels, each.value) for each in queues] == [
        ({"system": "cs2-01"}, 0), ({"system": "cs2-02"}, 0),
    ]  # fmt: skip
