"""--num_csx on a cluster: Slurm allocates all CS systems of a job at once."""

import dataclasses
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from support.fc_mnist import FcMnist
from support.jobs import STALL_S, Sandbox, until
from support.sites import STREAMING_8
from support.testbed import Testbed, site_file

from csrun.context import Hosts, JobFile

pytestmark = pytest.mark.slurm

STEPS = 20
LAYOUT = ("--tasks-per-node", "1", "--cpus-per-task", "1")
#: The chief, MemoryX, SwarmX and a streamer have a node each.
ON_CLUSTER = ("--total-nodes", "4", *LAYOUT)
TWO = ("--num_csx", "2")
TRAIN = (*TWO, "--max_steps", str(STEPS))


@pytest.fixture
def cluster(cluster_place: Sandbox) -> FcMnist:
    """Cluster with its two systems in weight streaming."""
    systems = yaml.safe_load(STREAMING_8.read_text())["systems"][:2]
    site = site_file(cluster_place.path, "slurm", systems=systems)
    return FcMnist(cluster_place.path, site=site, variables=cluster_place.variables)


def checkpoint_of_one_machine(folder: Path) -> bytes:
    """Checkpoint of the same training under the other scheduler."""
    folder.mkdir()
    place = FcMnist(folder)
    done = place.wse(*TRAIN, layout=("--site", "streaming-8", "--total-nodes", "3", *LAYOUT))
    assert done.returncode == 0, done.stderr
    return place.checkpoint(STEPS).read_bytes()


def test_two_systems_have_the_bits_of_one_machine(cluster: FcMnist, tmp_path: Path) -> None:
    done = cluster.wse(*TRAIN, layout=ON_CLUSTER)
    assert done.returncode == 0, done.stderr
    assert "2 CS systems share each batch: cs2-01, cs2-02" in done.stdout
    assert f"Train Device=cs2-01+cs2-02, Step={STEPS}" in done.stdout
    assert cluster.checkpoint(STEPS).read_bytes() == checkpoint_of_one_machine(tmp_path / "local")


WAITS = """
import os, time
job = os.environ["SLURM_JOB_ID"]
if os.environ["SLURM_PROCID"] == "0":
    open("in" + job, "w").close()
while not os.path.exists("end" + job):
    time.sleep(0.05)
"""


def test_two_jobs_that_want_both_systems_have_them_one_after_the_other(
    cluster: FcMnist, testbed: Testbed
) -> None:
    cluster.script(WAITS)
    job = (*ON_CLUSTER, "python-ws", "run.py", *TWO)
    with cluster.start(*job) as first, cluster.start(*job) as second:
        until(lambda: {"RUNNING", "PENDING"} <= {line.split()[0] for line in testbed.queue()})
        listed = json.loads(cluster.csctl("get", "jobs", "-o", "json").stdout)
        systems = json.loads(cluster.csctl("get", "systems", "-o", "json").stdout)
        number = {each["state"]: each["job_id"] for each in listed}
        runs, waits = number["RUNNING"], number["PENDING"]
        has_begun = (cluster.path / f"in{waits}").exists()
        (cluster.path / f"end{runs}").touch()
        cluster.wait_for(f"in{waits}")
        (cluster.path / f"end{waits}").touch()
        for each in (first, second):
            _, err = each.communicate(timeout=STALL_S)
            assert each.returncode == 0, err
    of_both = [each["systems"] for each in listed if each["job_id"] in (runs, waits)]
    assert of_both == [["cs2-01", "cs2-02"]] * 2
    assert [(each["job"], each["waiting"]) for each in systems] == [(runs, [waits])] * 2
    assert not has_begun


def test_what_is_asked_for_and_more_than_there_is(cluster: FcMnist, testbed: Testbed) -> None:
    cluster.script("")
    shown = cluster.run("--dry-run", *ON_CLUSTER, "python-ws", "run.py", *TWO)
    assert shown.stdout.count("--gres=cs:cs2-01:1,cs:cs2-02:1 ") == 1
    refused = cluster.run(*ON_CLUSTER, "python-ws", "run.py", "--num_csx", "3")
    assert refused.returncode == 2
    (said,) = refused.stderr.splitlines()
    assert said.endswith("num_csx must be at most 2, got 3: site testbed has 2 CS systems")
    assert not testbed.queue()


MACHINES = """
import os
if "SLURMD_NODENAME" in os.environ:
    from csrun.launch.slurm import identity
    identity.machine = lambda: os.environ["SLURMD_NODENAME"]
"""


@pytest.mark.slow
def test_a_submitted_job_between_machines_has_the_same_bits(
    cluster: FcMnist, testbed: Testbed, tmp_path: Path
) -> None:
    """Each node acts as a separate machine, so that all traffic uses TCP and SwarmX."""
    (tmp_path / "sitecustomize.py").write_text(MACHINES)
    variables = (*cluster.variables, ("PYTHONPATH", str(tmp_path)))
    place = dataclasses.replace(cluster, variables=variables)
    done = place.wse(*TRAIN, layout=("--sbatch", "--compile-first", *ON_CLUSTER))
    assert done.returncode == 0, done.stderr
    _, training = re.findall(r"Submitted batch job (\d+)", done.stdout)
    assert "cs:cs2-01:1,gres:cs:cs2-02:1" in testbed.call("scontrol", "show", "job", training)
    until(lambda: not testbed.queue())
    said = (place.path / f"slurm-{training}.out").read_text()
    assert "Cached compilation found" in said
    assert f"Train Device=cs2-01+cs2-02, Step={STEPS}" in said
    assert JobFile.read(place.jobs / training).hosts is Hosts.SEPARATE
    assert place.checkpoint(STEPS).read_bytes() == checkpoint_of_one_machine(tmp_path / "local")


@pytest.mark.slow
def test_a_users_job_that_holds_both_is_run_in(cluster: FcMnist) -> None:
    cluster.script("import os\nprint('in', os.environ['SLURM_JOB_ID'])")
    job = (*ON_CLUSTER, "python-ws", "run.py", *TWO)

    def inside(line: str) -> "subprocess.CompletedProcess[str]":
        return dataclasses.replace(cluster, around=tuple(shlex.split(line))).run(*job)

    said = inside("salloc --nodes=1 --exclusive").stderr.splitlines()
    line = next(text for text in said if text.startswith("  salloc "))
    refused = inside(line.replace(",cs:cs2-02:1", ""))
    assert refused.returncode == 2
    assert "does not hold 2 of cs2-01, cs2-02: " in refused.stderr
    done = inside(line)
    assert done.returncode == 0, done.stderr
    granted = re.search(r"Granted job allocation (\d+)", done.stderr)
    assert granted is not None
    assert f"in {granted[1]}\n" in done.stdout
