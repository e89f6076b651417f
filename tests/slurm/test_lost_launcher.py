"""The host of csrun_wse is lost, with its srun: the job continues, and frees its nodes."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from support.fc_mnist import MANY_STEPS, RUN, FcMnist
from support.jobs import STALL_S, Sandbox, entry_of, until
from support.testbed import Testbed

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

STREAMING = ("--total-nodes", "4", "--tasks-per-node", "1", "--cpus-per-task", "1")
IMPATIENT = """
import sys
from csrun.launch.slurm import orphaned_node
orphaned_node.HEARTBEAT_S, orphaned_node.SILENCE_S = 0.5, 4.0
sys.argv[:] = sys.argv[3:]  # after this python, and -c
exec(sys.argv[0])
"""


@pytest.fixture
def there(cluster_place: Sandbox) -> FcMnist:
    """fc_mnist on the cluster, under a launcher with short heartbeats and timeouts."""
    return FcMnist(
        cluster_place.path,
        around=(sys.executable, "-c", IMPATIENT),
        site=cluster_place.site,
        variables=cluster_place.variables,
    )


@pytest.fixture
def repaired(testbed: Testbed) -> Iterator[Testbed]:
    """The cluster, repaired after the test."""
    yield testbed
    testbed.start()


def lose(launcher: int) -> None:
    """Kill the launcher and its sruns at once, so that none reports another's end."""
    process = psutil.Process(launcher)
    victims = [process, *process.children(recursive=True)]
    for victim in victims:
        victim.suspend()
    for victim in reversed(victims):  # the kernel wakes what is stopped as its parent ends
        victim.kill()


def node_agents(testbed: Testbed) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["name"]):
        if process.info["name"].startswith("node-agent-"):
            try:
                if process.environ().get("SLURM_CONF") == str(testbed.conf):
                    yield process
            except psutil.Error:
                continue


def test_the_job_of_a_lost_launcher_ends_with_its_first_task(
    there: FcMnist, testbed: Testbed
) -> None:
    there.configure(runconfig__log_steps=1)
    with there.start_wse("--max_steps", str(MANY_STEPS), layout=STREAMING) as launcher:
        assert launcher.stdout is not None
        next(line for line in launcher.stdout if "global_step = 1," in line)
        lose(launcher.pid)
        launcher.communicate(timeout=STALL_S)
    comment = ("squeue", "--noheader", "--format=%k")
    until(lambda: "csrun: launcher lost" in testbed.call(*comment))
    assert "RUNNING" in " ".join(testbed.queue())
    assert "csrun: launcher lost" in there.csctl("get", "jobs").stdout
    streamer = next(a for a in node_agents(testbed) if a.name() == "node-agent-3").children()[0]
    streamer.send_signal(signal.SIGKILL)
    until(lambda: not testbed.queue())
    assert not list(node_agents(testbed))
    again = there.wse("--max_steps", "2", "--model_dir", "again", layout=STREAMING)
    assert again.returncode == 0, again.stderr


def test_a_training_whose_launcher_is_lost_ends_as_if_undisturbed(
    there: FcMnist, testbed: Testbed
) -> None:
    there.configure(runconfig__log_steps=1)
    steps = 300
    with there.start_wse("--max_steps", str(steps), layout=STREAMING) as launcher:
        assert launcher.stdout is not None
        next(line for line in launcher.stdout if "global_step = 1," in line)
        lose(launcher.pid)
        launcher.communicate(timeout=STALL_S)
    until(lambda: not testbed.queue())
    whole = there.cpu("--max_steps", str(steps), "--model_dir", "undisturbed")
    assert whole.returncode == 0, whole.stderr
    ours, its = there.checkpoint(steps), there.checkpoint(steps, "undisturbed")
    assert ours.read_bytes() == its.read_bytes()
    assert not list(node_agents(testbed))


def test_a_batch_job_whose_first_node_is_lost_resumes(there: FcMnist, repaired: Testbed) -> None:
    """Its other components continue with the processes of the first start."""
    steps = 400
    there.configure(runconfig__log_steps=1, runconfig__save_checkpoints_steps=20)
    words = (*STREAMING, "python-ws", RUN, *there.own(("--max_steps", str(steps))))
    job = submitted(there, repaired, there.run("--dry-run", "--sbatch", *words).stdout)
    until(lambda: there.checkpoint(20).exists())
    repaired.kill_node("node1")
    repaired.call("scontrol", "update", "NodeName=node1", "State=DOWN", "Reason=lost")
    assert repaired.queue() == [f"PENDING {job}+0", f"RUNNING {job}+1", f"RUNNING {job}+2"]
    repaired.revive_node("node1")
    # not at once: what Slurm still has to tell the lost node is of the job's number
    begin = ("scontrol", "update", f"JobId={job}", "StartTime=now+15")
    repaired.call(*begin, check=False)  # it refuses for the component that runs
    until(lambda: f"RUNNING {job}+0" in repaired.queue())
    until(lambda: not repaired.queue())
    out = (there.path / f"slurm-{job}.out").read_text()
    assert "Restoring parameters from model_dir/model-ckpt-" in out
    whole = there.cpu("--max_steps", str(steps), "--model_dir", "undisturbed")
    assert whole.returncode == 0, whole.stderr
    ours, its = there.checkpoint(steps), there.checkpoint(steps, "undisturbed")
    assert ours.read_bytes() == its.read_bytes()


def submitted(there: FcMnist, testbed: Testbed, script: str) -> str:
    """Id of a batch job by this script, with this launcher instead of its own."""
    assert "/csrun_wse " in script
    program = there.path / "launcher.py"
    program.write_text(IMPATIENT)
    ours = f" {sys.executable} {program} python -c '{entry_of('csrun_wse')}' "
    file = there.path / "job.sh"
    file.write_text(re.sub(r" \S+/csrun_wse ", lambda _: ours, script))
    done = subprocess.run(
        ["sbatch", "--parsable", str(file)], cwd=there.path, text=True, check=True, timeout=120,
        env=testbed.environment | {"CSRUN_STATE_DIR": str(there.path / "state")},
        stdout=subprocess.PIPE,
    )  # fmt: skip
    return done.stdout.strip()
