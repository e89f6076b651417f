"""One table of jobs with equal outcomes on two schedulers."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.jobs import STALL_S, Sandbox, over_its_limit

from csrun.context.deferred_termination import describe_signal

FC_MNIST = Path(__file__).parents[2] / "reference_models" / "fc_mnist" / "run.py"
STEPS = ("--mode", "train", "--max_steps", "20")
#: One task alone, one alone, four on two nodes: three components of a heterogeneous srun.
THREE = ("--total-nodes", "4", "--single-task-nodes", "2", "--tasks-per-node", "2",
         "--cpus-per-task", "1")  # fmt: skip
RANK = "import os, sys, time\nrank = os.environ['SLURM_PROCID']\n"
SAY = f"{RANK}open('in' + rank, 'w').close()\n"


def loss(text: str) -> str:
    found = re.search(r"Loss for final step: (\S+)\.", text)
    assert found is not None, text
    return found.group(1)


@pytest.fixture(scope="module")
def plain_loss(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Final loss of the same training in one process, without csrun's launcher."""
    done = subprocess.run(
        [sys.executable, FC_MNIST, *STEPS], cwd=tmp_path_factory.mktemp("plain"),
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return loss(done.stdout + done.stderr)


@pytest.mark.slurm
@pytest.mark.parametrize("layout", [
    pytest.param(("--total-nodes", "2", "python"), marks=pytest.mark.slow),
    ("--total-nodes", "4", "python-ws"),
    pytest.param(
        ("--total-nodes", "4", "--tasks-per-node", "8", "--cpus-per-task", "1", "--cyclic",
         "python-ws"), marks=pytest.mark.slow),
])  # fmt: skip
def test_a_training_is_that_of_one_process(
    cluster_place: Sandbox, layout: tuple[str, ...], plain_loss: str
) -> None:
    """tests/job/test_same_bits.py has the same for one machine."""
    done = cluster_place.run(*layout, str(FC_MNIST), *STEPS)
    assert done.returncode == 0, done.stderr
    assert loss(done.stdout) == plain_loss
    lines = done.stderr.splitlines()
    assert re.fullmatch(r"srun: job \d+ queued and waiting for resources", lines[0])
    assert re.fullmatch(r"srun: job \d+ has been allocated resources", lines[-1])


EXITS = ("sys.exit(7)", 7, "ended with exit code 7")
IS_KILLED = ("os.kill(os.getpid(), 9)", 137, "was killed by signal 9 (SIGKILL)")


@pytest.mark.parametrize(("rank", "ending", "code", "said"), [
    (1, *EXITS), (5, *IS_KILLED),
    *(pytest.param(rank, *how, marks=pytest.mark.slow)
      for rank, how in ((0, EXITS), (5, EXITS), (0, IS_KILLED), (1, IS_KILLED))),
])  # fmt: skip
def test_a_task_that_fails_in_each_component(
    place: Sandbox, rank: int, ending: str, code: int, said: str
) -> None:
    place.script(f"{SAY}if rank == '{rank}':\n    {ending}\ntime.sleep(600)")
    done = place.run(*THREE, "python", "run.py")
    assert done.returncode == code
    node = {0: "node1", 1: "node2", 5: "node4"}[rank]
    role = "chief" if rank == 0 else "streamer"
    assert f"csrun_wse: error: rank {rank} ({role}) on {node} {said}" in done.stderr.splitlines()
    log = done.stderr.splitlines()[-1].removeprefix("log: ")
    assert Path(log).name == f"rank-0000{rank}.log"
    assert Path(log).exists()


def test_a_traceback_is_read_last_and_once(place: Sandbox) -> None:
    place.script(f"{SAY}print('before')\nif rank == '0':\n    raise ValueError('bad batch')\n"
                 "time.sleep(600)")  # fmt: skip
    done = place.run(*THREE, "python", "run.py")
    assert done.returncode == 1
    assert done.stdout.splitlines()[1:] == ["before"]
    assert done.stderr.splitlines()[-2] == "ValueError: bad batch"
    assert done.stderr.count("bad batch") == 2  # the line of the source, and the error


def test_a_lost_peer_is_not_the_cause(place: Sandbox) -> None:
    place.script(
        f"{SAY}from csrun.base.errors import PeerLost\n"
        "if rank == '4': time.sleep(0.1); os.kill(os.getpid(), 9)\n"
        "raise PeerLost('rank 4 is gone', 'streamer 4')"
    )
    done = place.run(*THREE, "python", "run.py")
    assert done.returncode == 137
    assert "rank 4 (streamer) on node4" in done.stderr


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_lets_every_task_finish_what_it_does(
    place: Sandbox, signum: signal.Signals
) -> None:
    place.script(f"{RANK}try:\n    open('in' + rank, 'w').close()\n    time.sleep(600)\nfinally:\n"
                 "    time.sleep(0.3)\n    open('out' + rank, 'w').close()")  # fmt: skip
    with place.start(*THREE, "python", "run.py") as job:
        place.wait_for(*(f"in{rank}" for rank in range(6)))
        job.send_signal(signum)
        _, err = job.communicate(timeout=STALL_S)
    assert job.returncode == 128 + signum
    assert f"csrun_wse: {describe_signal(signum)}: job terminated" in err
    assert all((place.path / f"out{rank}").exists() for rank in range(6))


def test_a_task_that_does_not_heed_is_killed(place: Sandbox) -> None:
    place.script(f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [15])\n{SAY}"
                 "time.sleep(600)")  # fmt: skip
    with place.start("--total-nodes", "1", "python", "run.py") as job:
        place.wait_for("in0", "in1")
        job.send_signal(signal.SIGINT)
        time.sleep(0.5)  # two at the same moment are one to the kernel
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=STALL_S)
    assert job.returncode == 130


def test_a_time_limit_ends_the_job_in_order(place: Sandbox) -> None:
    place.script(f"{RANK}try:\n    open('in' + rank, 'w').close()\n    time.sleep(600)\nfinally:\n"
                 "    open('out' + rank, 'w').close()")  # fmt: skip
    done, limit = over_its_limit(
        place,
        lambda: len(list(place.path.glob("in*"))) == 6,
        *THREE,
        "python",
        "run.py",
        first_limit_s=2,
    )
    assert done.returncode == 143
    assert f"csrun_wse: time limit of {limit} reached: job terminated" in done.stderr
    assert len(list(place.path.glob("out*"))) == 6


def test_the_output_goes_where_it_is_asked_to(place: Sandbox) -> None:
    command = ("sh", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME")
    done = place.run("--output", "%x-%2t.txt", "--job-name", "say", *THREE, *command)
    assert done.returncode == 0
    assert (place.path / "say-05.txt").read_text() == "5 node4\n"
    missing = place.run("--output", "%N/x.txt", *THREE, *command)
    assert missing.returncode == 2
    assert "--output: node1/x.txt: cannot be written" in missing.stderr


def test_all_tasks_of_another_command_are_shown(place: Sandbox) -> None:
    done = place.run(*THREE, "--label", "sh", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME")
    assert done.returncode == 0
    lines = sorted(done.stdout.splitlines()[1:])
    nodes = ["node1", "node2", "node3", "node3", "node4", "node4"]
    assert lines == [f"{rank}: {rank} {node}" for rank, node in enumerate(nodes)]


def test_a_pipe_of_params_is_read_by_the_tasks_of_all_nodes(cluster_place: Sandbox) -> None:
    cluster_place.script("import sys; print(open(sys.argv[2]).read())")
    os.mkfifo(cluster_place.path / "pipe")
    text = threading.Thread(target=(cluster_place.path / "pipe").write_text, args=("seed: 1",))
    text.start()
    two = ("--total-nodes", "2", "--tasks-per-node", "1", "--cpus-per-task", "1")
    done = cluster_place.run(*two, "--label", "python", "run.py", "--params", "pipe")
    text.join()
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "seed" in line) == [
        "0: seed: 1", "1: seed: 1"
    ]  # fmt: skip


def test_the_tasks_of_a_node_are_forks_of_one_process(
    cluster_place: Sandbox,
) -> None:
    """Each has its own rank in Slurm's variables, and shares imports."""
    cluster_place.script(
        f"{RANK}import json\nhad_it = 'csrun.estimator' in sys.modules\n"
        "import csrun\n"  # a script without it has nothing in common to import
        "found = {'parent': os.getppid(), 'had_it': had_it, **os.environ}\n"
        "with open('env' + rank, 'w') as file:\n    json.dump(found, file)\n"
        "import subprocess, time\nshown = ''\n"
        "while rank == '0' and 'Tasks=2' not in shown:  # until all components run\n"
        "    time.sleep(0.1)\n"
        "    shown = subprocess.check_output(['scontrol', 'show', 'step'], text=True)\n"
        "if rank == '0':\n    print(shown)\n    open('seen', 'w').close()\n"
        "while not os.path.exists('seen'):  # the others run as long\n    time.sleep(0.1)\n"
    )
    done = cluster_place.run(*THREE, "--cyclic", "python", "run.py")
    assert done.returncode == 0, done.stderr
    envs = [json.loads((cluster_place.path / f"env{rank}").read_text()) for rank in range(6)]
    assert all(env["had_it"] for env in envs)
    places = [(env["SLURMD_NODENAME"], env["SLURM_NODEID"], env["SLURM_LOCALID"]) for env in envs]
    assert places == [("node1", "0", "0"), ("node2", "1", "0"), ("node3", "2", "0"),
                      ("node4", "3", "0"), ("node3", "2", "1"), ("node4", "3", "1")]  # fmt: skip
    assert {env["SLURM_GTIDS"] for env in envs} == {"0", "1", "2,4", "3,5"}
    assert len({env["parent"] for env in envs}) == 4
    steps = re.findall(r"NodeList=(\S+)\s+Nodes=(\d) .*Tasks=(\d)", done.stdout)
    assert ("node[3-4]", "2", "2") in steps  # one task of Slurm's a node
    assert {env["SLURM_NTASKS"] for env in envs} == {"6"}


@pytest.mark.slurm
def test_two_jobs_never_have_one_system(cluster_place: Sandbox) -> None:
    """tests/cli/test_csctl.py has the same for one machine: the second waits for the first."""
    jobs = [
        cluster_place.start(
            "--total-nodes", "2", "python", str(FC_MNIST), *STEPS, "-o", f"model{n}"
        )
        for n in range(2)
    ]
    ends = [(job.communicate(timeout=STALL_S), job.returncode) for job in jobs]
    assert [code for _, code in ends] == [0, 0], ends
    assert all("cs2-01" in out for (out, _), _ in ends)


@pytest.mark.parametrize(("asked", "advice"), [
    (("--total-nodes", "5"), "use --total-nodes 4"),
    (("--tasks-per-node", "3", "--cpus-per-task", "4"), "--tasks-per-node 2"),
])  # fmt: skip
def test_what_can_never_run_is_refused(place: Sandbox, asked: tuple[str, ...], advice: str) -> None:
    done = place.run(*asked, "sh", "-c", "true")
    assert done.returncode == 2
    assert advice in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_nothing_secret_is_left(place: Sandbox) -> None:
    assert place.run("--total-nodes", "1", "sh", "-c", "true").returncode == 0
    assert not list(place.jobs.rglob("secret"))
    assert not list(place.jobs.rglob("*.sock"))
    assert not list(place.jobs.rglob("cache"))
