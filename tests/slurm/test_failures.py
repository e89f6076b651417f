"""Failures of a job on a cluster: cancelled, a node lost, Slurm unavailable."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.jobs import STALL_S, Sandbox, gone, until
from support.testbed import Testbed, site_file

pytestmark = pytest.mark.slurm

FC_MNIST = Path(__file__).parents[2] / "reference_models" / "fc_mnist" / "run.py"
SPREAD = ("--total-nodes", "4", "--tasks-per-node", "1", "--cpus-per-task", "1")
TASKS = tuple(f"in{rank}" for rank in range(4))
WAIT = """
import os, time
rank = os.environ["SLURM_PROCID"]
try:
    with open(f"in{rank}.tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"in{rank}.tmp", f"in{rank}")
    time.sleep(600)
finally:
    open(f"out{rank}", "w").close()
"""


@pytest.fixture
def place(cluster_place: Sandbox) -> Sandbox:
    cluster_place.script(WAIT)
    return cluster_place


@pytest.fixture
def repaired(testbed: Testbed) -> Iterator[Testbed]:
    """The cluster, repaired after the test."""
    yield testbed
    testbed.start()


@pytest.mark.parametrize("command", ["scancel", "csctl cancel"])
def test_a_cancelled_job_lets_every_task_finish_what_it_does(
    place: Sandbox, testbed: Testbed, command: str
) -> None:
    with place.start(*SPREAD, "python", "run.py") as job:
        place.wait_for(*TASKS)
        if command == "scancel":
            testbed.call("scancel", "--user=root")
            reason = "cancelled with scancel"
        else:
            assert job.stderr is not None
            queued = re.search(r"srun: job (\d+)", job.stderr.readline())
            assert queued is not None
            assert place.csctl("cancel", queued[1]).returncode == 0
            reason = "cancelled by root (csctl cancel)"
        _, err = job.communicate(timeout=STALL_S)
    assert job.returncode == 143
    assert f"csrun_wse: {reason}: job terminated" in err
    until(lambda: reason in place.csctl("get", "jobs", "--all").stdout)
    assert all((place.path / f"out{rank}").exists() for rank in range(4))


def test_a_job_that_is_cancelled_while_its_nodes_start_says_so(
    cluster_place: Sandbox, testbed: Testbed
) -> None:
    begun = cluster_place.path / "begun"
    cluster_place.script("")
    site = site_file(cluster_place.path, "slurm", prolog=[f"touch {begun}", "sleep 600"])
    with replace(cluster_place, site=site).start(*SPREAD, "python", "run.py") as job:
        until(begun.exists)
        testbed.call("scancel", "--user=root")
        _, err = job.communicate(timeout=STALL_S)
    assert job.returncode == 143, err
    assert "csrun_wse: error: cancelled with scancel: job ended before it started" in err
    assert "slurmstepd" not in err


@pytest.mark.slow
def test_a_job_at_the_time_limit_of_slurm_says_so(place: Sandbox, testbed: Testbed) -> None:
    with place.start(*SPREAD, "python", "run.py") as job:
        place.wait_for(*TASKS)
        for each in testbed.call("squeue", "--noheader", "--format=%i", "--state=RUNNING").split():
            testbed.call("scontrol", "update", f"JobId={each}", "TimeLimit=1")
        _, err = job.communicate(timeout=STALL_S)
    assert "csrun_wse: time limit of Slurm reached: job terminated" in err


def test_a_job_that_waits_can_be_interrupted(place: Sandbox, testbed: Testbed) -> None:
    with place.start(*SPREAD, "python", "run.py") as holder:
        place.wait_for(*TASKS)
        for stop, code in [
            (lambda waiter: waiter.send_signal(signal.SIGINT), 130),
            (lambda waiter: testbed.call("scancel", "--state=PENDING", "--user=root"), 1),
        ]:
            with place.start(*SPREAD, "python", "run.py") as waiter:
                until(lambda: any("PENDING" in line for line in testbed.queue()))
                stop(waiter)
                _, err = waiter.communicate(timeout=STALL_S)
            assert waiter.returncode == code, err
            assert "csrun_wse: error: " in err
            until(lambda: not any("PENDING" in line for line in testbed.queue()))
        holder.send_signal(signal.SIGINT)
        holder.communicate(timeout=STALL_S)
    assert holder.returncode == 130


def test_a_launcher_that_is_killed_takes_its_job_with_it(place: Sandbox, testbed: Testbed) -> None:
    with place.start(*SPREAD, "python", "run.py") as job:
        place.wait_for(*TASKS)
        job.kill()
        job.communicate(timeout=STALL_S)
    assert gone([place.pid(name) for name in TASKS])
    until(lambda: not testbed.queue())


@pytest.mark.slow
def test_a_slurmd_that_is_killed_alone_ends_no_job(place: Sandbox, repaired: Testbed) -> None:
    """Its steps continue, and read instructions from the mailbox."""
    place.script(WAIT.replace("time.sleep(600)", "time.sleep(600 if rank == '0' else 0)"))
    with place.start(*SPREAD, "python", "run.py") as job:
        place.wait_for(*TASKS)
        repaired.kill_slurmd("node1")
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=STALL_S)
    assert job.returncode == 130
    assert "csrun_wse: Ctrl-C (SIGINT): job terminated" in err
    assert (place.path / "out0").exists()


@pytest.mark.slow
def test_a_lost_node_is_named(place: Sandbox, repaired: Testbed) -> None:
    with place.start("--total-nodes", "4", "python-ws", str(FC_MNIST), "--mode", "train",
                     "--max_steps", "9999999") as job:  # fmt: skip
        assert job.stdout is not None
        next(line for line in job.stdout if "global_step = 1," in line)
        repaired.kill_node("node3")
        _, err = job.communicate(timeout=STALL_S)
    assert job.returncode == 1
    assert "csrun_wse: error: node3 lost" in err
    assert "(streamer) on node3, exit code 1; log: " in err.splitlines()[-1]


def test_a_node_agent_that_is_killed_is_the_cause(place: Sandbox) -> None:
    with place.start(*SPREAD, "python", "run.py") as job:
        place.wait_for(*TASKS)
        parent = psutil.Process(place.pid("in2")).parent()
        assert parent is not None
        parent.kill()
        _, err = job.communicate(timeout=STALL_S)
    assert job.returncode == 1
    assert "rank 2 (streamer) on node3" in err
    assert gone([place.pid(name) for name in TASKS])


@pytest.mark.slow
def test_an_srun_that_is_killed_leaves_nothing(place: Sandbox, testbed: Testbed) -> None:
    with place.start(*SPREAD, "python", "run.py") as job:
        place.wait_for(*TASKS)
        for child in psutil.Process(job.pid).children(recursive=True):
            if child.name() == "srun":
                child.kill()
        _, err = job.communicate(timeout=STALL_S)
    assert job.returncode == 137
    assert "csrun_wse: error: srun was killed by signal 9" in err
    assert gone([place.pid(name) for name in TASKS])
    until(lambda: not testbed.queue())


def test_without_srun_it_is_a_users_mistake(place: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    there = replace(place, variables=(("PATH", str(tmp_path / "bin")),))
    (tmp_path / "bin" / "true").symlink_to("/bin/true")
    done = there.run(*SPREAD, "true")
    assert done.returncode == 2
    assert "srun: command not found" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_munge_it_says_so(place: Sandbox, repaired: Testbed) -> None:
    pid = int((repaired.folder / "pid" / "munged.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    until(lambda: not psutil.pid_exists(pid))
    done = place.run(*SPREAD, "python", "run.py")
    assert done.returncode == 1
    assert "Slurm does not answer" in done.stderr
    assert "systemctl status munge" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_controller_it_says_so(place: Sandbox, tmp_path: Path, testbed: Testbed) -> None:
    conf = tmp_path / "slurm.conf"
    port = testbed.environment["SLURM_TESTBED_PORT"]
    text = testbed.conf.read_text().replace(f"SlurmctldPort={port}", "SlurmctldPort=9")
    conf.write_text(f"{text}\nMessageTimeout=2\n")  # what sinfo waits for, 10 s else
    (tmp_path / "cgroup.conf").write_text("")
    there = replace(place, variables=(("SLURM_CONF", str(conf)),))
    done = there.run(*SPREAD, "python", "run.py")
    assert done.returncode == 1
    assert "scontrol ping" in done.stderr


@pytest.mark.slow
def test_a_folder_that_is_not_shared_is_found_before_anything_runs(
    place: Sandbox, tmp_path: Path
) -> None:
    """node3 has another folder at the path of the jobs, as a stand-in for apptainer hides it."""
    jobs = tmp_path / "jobs"
    programs = tmp_path / "programs"
    programs.mkdir()
    apptainer = programs / "apptainer"
    apptainer.write_text(
        '#!/bin/sh\nshift 4\nif [ "$SLURMD_NODENAME" = node3 ]; then\n'
        f'exec unshare --mount sh -c \'mount -t tmpfs none {jobs} && exec "$@"\' sh "$@"\n'
        'fi\nexec "$@"\n'
    )
    apptainer.chmod(0o755)
    site = site_file(tmp_path, "slurm", container="image.sif", jobs_dir=str(jobs))
    inside = Path(sys.executable).parent  # the image's python
    path = f"{programs}:{inside}:{os.environ['PATH']}"
    there = replace(place, site=site, variables=(*place.variables, ("PATH", path)))
    done = there.run(*SPREAD, "python", "run.py")
    assert done.returncode == 2, done.stderr
    assert "node3: job folder" in done.stderr.splitlines()[-1]
    assert "set jobs_dir in the site file" in done.stderr.splitlines()[-1]
    assert not list(place.path.glob("in*"))


def test_a_system_that_the_cluster_has_not(place: Sandbox, tmp_path: Path) -> None:
    there = replace(place, site=site_file(tmp_path, "slurm", gres="wse:{system}:1"))
    done = there.run(*SPREAD, "python", "run.py")
    assert done.returncode == 2
    assert "no node of the cluster has wse:cs2-01:1, known: cs:cs2-01, cs:cs2-02" in done.stderr
