"""Jobs on this machine: exit codes, first causes, signals, queueing, no leftovers."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from support.jobs import STALL_S, Sandbox, gone, until

SMALL = ("--total-nodes", "1", "--tasks-per-node", "3", "--cpus-per-task", "1")

# Every task says its process id and waits; rank 1 has children in sessions of their own.
WAIT = """
import os, subprocess, sys, time
rank = os.environ["SLURM_PROCID"]
def say(name, pid):
    with open(name + ".tmp", "w") as file:
        file.write(str(pid))
    os.rename(name + ".tmp", name)
if rank == "1":
    say("grandchild", subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            say("daemon", os.getpid())
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
say("task" + rank, os.getpid())
time.sleep(600)
"""
TASKS = ("task0", "task1", "task2", "grandchild", "daemon")


@pytest.fixture
def place(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_a_job_that_ends_well(place: Sandbox) -> None:
    place.script(
        "import os, stat, sys; from csrun.context import current\n"
        "print(os.environ['SLURM_PROCID'], sys.argv, sys.path[0])\n"
        "secret = current().job_dir / 'secret'\n"
        "print(oct(stat.S_IMODE(os.stat(secret).st_mode)), len(current().secret))"
    )
    done = place.run(*SMALL, "python", "run.py", "--mode", "train", "a b")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "Launching: python run.py --mode train 'a b'",
        f"0 ['run.py', '--mode', 'train', 'a b'] {place.path}",
        "0o600 32",  # the secret is for the owner alone
    ]
    assert done.stderr.splitlines() == [
        "srun: job 1 queued and waiting for resources",
        "srun: job 1 has been allocated resources",
    ]
    job = place.jobs / "1"
    logs = sorted(path.name for path in (job / "logs").iterdir())
    assert logs == ["forkserver.log", "rank-00000.log", "rank-00001.log", "rank-00002.log"]
    assert (job / "logs" / "rank-00002.log").read_text().startswith("2 ")
    assert not (job / "secret").exists()


ONE_TASK_ENDS = [
    ("os._exit(5)", 5, "rank 1 (streamer) on node1 ended with exit code 5"),
    ("sys.exit('no data')", 1, "  no data"),
]


@pytest.mark.parametrize(("ending", "code", "named"), ONE_TASK_ENDS)
def test_the_task_that_fails_is_named_last(
    place: Sandbox, ending: str, code: int, named: str
) -> None:
    place.script(f"import os, sys, time\nif os.environ['SLURM_PROCID'] == '1':\n    {ending}\n"
                 "time.sleep(600)")  # fmt: skip
    done = place.run(*SMALL, "python", "run.py")
    assert done.returncode == code
    assert named in done.stderr
    assert done.stderr.splitlines()[-1] == f"log: {place.jobs}/1/logs/rank-00001.log"


def test_a_traceback_is_the_users_own_and_shown_once(place: Sandbox) -> None:
    place.script("import os\nprint('before')\nraise ValueError('bad batch')")
    done = place.run(*SMALL[:3], "1", "python", "run.py")
    assert done.stdout.splitlines()[1:] == ["before"]
    assert done.stderr.splitlines()[-5:] == [
        "Traceback (most recent call last):",
        '  File "run.py", line 3, in <module>',
        "    raise ValueError('bad batch')",
        "ValueError: bad batch",
        f"log: {place.jobs}/1/logs/rank-00000.log",
    ]
    assert "ValueError" in (place.jobs / "1/logs/rank-00000.log").read_text()


def test_a_users_mistake_is_one_line(place: Sandbox) -> None:
    place.script(
        "from csrun.base.errors import UsageError\nraise UsageError('params.yaml: no key')"
    )
    done = place.run(*SMALL[:3], "1", "python", "run.py")
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    assert "csrun_wse: error: params.yaml: no key" in done.stderr.splitlines()
    assert (place.jobs / "1/logs/rank-00000.log").read_text() == "error: params.yaml: no key\n"


def test_a_peers_loss_is_not_the_cause(place: Sandbox) -> None:
    place.script(
        "import os, time; from csrun.base.errors import PeerLost\n"
        "if os.environ['SLURM_PROCID'] == '2': time.sleep(0.1); os.kill(os.getpid(), 9)\n"
        "raise PeerLost('rank 2 is gone', 'streamer 2')"
    )
    done = place.run(*SMALL, "python", "run.py")
    assert done.returncode == 137
    assert "rank 2 (streamer)" in done.stderr


def test_a_module_runs_as_one_to_the_end_of_its_threads_and_exit_handlers(
    place: Sandbox,
) -> None:
    place.script(
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
        "print(__name__, sys.argv[1:])"
    )
    done = place.run(*SMALL[:3], "1", "python", "-m", "run", "x")
    assert done.stdout.splitlines()[1:] == ["__main__ ['x']", "thread", "handler"]


@pytest.mark.parametrize("command", [("python", "-c", "print(6*7)"), ("sh", "-c", "echo 42")])
def test_other_programs_run_under_it(place: Sandbox, command: tuple[str, ...]) -> None:
    done = place.run(*SMALL[:3], "1", *command)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["42"])


WAFER = """
import time
from csrun.context import SpawnWafer, current
if __name__ == "__main__" and current().rank == 0:
    link = current().link()
    link.spawn_wafer(SpawnWafer("cs2-09", 4))  # the site has none of that name
    (current().job_dir / "runs").mkdir()
    (current().job_dir / "runs" / "4").mkdir()
    (current().job_dir / "runs" / "4" / "endpoint").write_text("no endpoint")
    link.spawn_wafer(SpawnWafer("cs2-01", 4))
time.sleep(600)
"""


def test_a_wafer_is_a_task_of_the_job(place: Sandbox) -> None:
    """It runs csrun's own code, for the system and run named in the message."""
    place.script(WAFER)
    done = place.run(*SMALL, "python", "run.py")
    assert done.returncode == 1
    damaged = f"{place.jobs / '1' / 'runs' / '4' / 'endpoint'}: the chief's address is damaged"
    assert f"csrun_wse: error: {damaged}" in done.stderr
    logs = place.jobs / "1" / "logs"
    log = logs / "wafer-cs2-01.log"
    assert not (logs / "wafer-cs2-09.log").exists()
    said = "wafer of 'cs2-09' for run 4 refused: the job may only use cs2-01, cs2-02"
    assert said in (logs / "forkserver.log").read_text()
    assert damaged in log.read_text()


def started(place: Sandbox, *words: str) -> "tuple[subprocess.Popen[str], list[int]]":
    """Waiting job with all its processes: launcher, fork server, tasks, their children."""
    launcher = place.start(*(words or (*SMALL, "python")), place.script(WAIT))
    pids = [place.pid(name) for name in TASKS]
    (server,) = psutil.Process(launcher.pid).children()
    return launcher, [server.pid, *pids]


def test_a_killed_fork_server_is_named_and_nothing_outlives_it(place: Sandbox) -> None:
    launcher, pids = started(place)
    with launcher:
        os.kill(pids[0], signal.SIGKILL)
        _, err = launcher.communicate(timeout=STALL_S)
        assert gone(pids)
    assert launcher.returncode == 137
    assert "the fork server was killed by signal 9" in err


def test_ps_shows_who_is_who_and_a_signal_to_the_launcher_ends_all(place: Sandbox) -> None:
    """SIGTERM here; test_interrupts.py tests Ctrl-C."""
    launcher, pids = started(place, "--total-nodes", "3", "--tasks-per-node", "1", "python-ws")
    with launcher:
        listed = ",".join(map(str, pids[:4]))
        ps = subprocess.run(["ps", "-o", "comm=", "-p", listed], capture_output=True, text=True)
        launcher.terminate()
        launcher.communicate(timeout=STALL_S)
        assert gone(pids)
    assert sorted(ps.stdout.split()) == ["chief-0", "forkserver", "memoryx-1", "streamer-2"]
    assert launcher.returncode == 143


def test_a_killed_task_takes_the_job_with_it(place: Sandbox) -> None:
    launcher, pids = started(place)
    with launcher:
        os.kill(pids[3], signal.SIGKILL)
        _, err = launcher.communicate(timeout=STALL_S)
        assert gone(pids)
    assert launcher.returncode == 137
    assert "rank 2 (streamer) on node1 was killed by signal 9 (SIGKILL)" in err


def test_a_task_may_finish_what_it_does_when_told_to_stop(place: Sandbox) -> None:
    place.script(
        "import time; from csrun.context import Terminated\n"
        "print('ready', flush=True)\n"
        "try: open('task0', 'w').close(); time.sleep(600)\n"
        "except Terminated: time.sleep(0.2); print('checkpoint discarded'); raise"
    )
    with place.start(*SMALL[:3], "1", "python", "run.py") as launcher:
        place.wait_for("task0")
        launcher.terminate()
        out, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 143
    assert out.splitlines()[1:] == ["ready", "checkpoint discarded"]
    assert "Traceback" not in err


def test_two_jobs_queue_for_a_small_site(place: Sandbox) -> None:
    place.script(
        "import os, time\nnumber = os.environ['SLURM_JOB_ID']\n"
        "open('in' + number, 'w').close()\n"
        "while not os.path.exists('go' + number): time.sleep(0.01)"
    )
    asked = ("--total-nodes", "9", "--tasks-per-node", "1")
    with place.start(*asked, "python", "run.py") as first:
        place.wait_for("in1")
        with place.start(*asked, "python", "run.py") as second:
            lines = [second.stderr.readline() for _ in range(2)]  # type: ignore[union-attr]
            assert lines[0] == "srun: job 2 queued and waiting for resources\n"
            assert lines[1].startswith("csrun: waiting for 9 of the 16 nodes of site local")
            assert f"job 1 (process {first.pid}) holds 9" in lines[1]
            assert not (place.path / "in2").exists()
            (place.path / "go1").touch()
            place.wait_for("in2")
            (place.path / "go2").touch()
            _, err = second.communicate(timeout=STALL_S)
            assert err == "srun: job 2 has been allocated resources\n"
        first.communicate(timeout=STALL_S)
    assert (first.returncode, second.returncode) == (0, 0)


def test_nothing_outlives_a_killed_launcher_and_its_nodes_are_free_again(place: Sandbox) -> None:
    launcher, pids = started(place)
    with launcher:
        launcher.kill()
        assert gone(pids)
    assert (place.jobs / "1" / "secret").exists()
    done = place.run("--total-nodes", "16", "--tasks-per-node", "1", "true")
    assert done.returncode == 0
    assert "waiting for 16" not in done.stderr
    assert not (place.jobs / "1" / "secret").exists()


@pytest.mark.slow  # test_large_job.py has a quick job of 34 tasks
def test_ninety_eight_tasks(place: Sandbox) -> None:
    place.script("import os; open('rank' + os.environ['SLURM_PROCID'], 'w').close()")
    done = place.run(
        "--total-nodes", "14", "--tasks-per-node", "8", "--cpus-per-task", "16",
        "--single-task-nodes", "2", "python-ws", "run.py",
    )  # fmt: skip
    assert done.returncode == 0
    until(lambda: len(list(place.path.glob("rank*"))) == 98)
