"""98 tasks on this machine: resources while they train, and while they wait."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from bench.processes import cpu_seconds, family, pss_mb
from support.fc_mnist import MANY_STEPS, RUN, FcMnist
from support.jobs import STALL_S

import csrun

SITE = Path("site_configs") / "local.yaml"

LAYOUT = (
    "--total-nodes", "14", "--single-task-nodes", "2", "--tasks-per-node", "8",
    "--cpus-per-task", "16",
)  # fmt: skip
STREAMERS = 96
MOST_MB = 3 * 1024
MOST_CORE_SHARE = 0.05
FILL_S = 1.0  # for the rings to be full
WATCH_S = 3.0


@pytest.fixture
def place(tmp_path: Path) -> FcMnist:
    return FcMnist(tmp_path)


@pytest.mark.slow
def test_memory_of_the_job_and_cpu_of_waiting_streamers(place: FcMnist) -> None:
    command = ("python-ws", RUN, "--max_steps", str(MANY_STEPS))
    with place.start(*LAYOUT, *command) as launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            if "global_step = " in line:
                break
        processes = place.processes(launcher.pid)
        ranks = sorted(name for name in processes if name.startswith("rank-"))
        assert len(ranks) == STREAMERS + 2
        streamers = [processes[name] for name in ranks[2:]]
        assert pss_mb(family(launcher.pid)) < MOST_MB
        wafer = psutil.Process(processes["wafer-cs2-02"])
        wafer.suspend()
        time.sleep(FILL_S)
        before_s, begun_s = cpu_seconds(streamers), time.monotonic()
        time.sleep(WATCH_S)
        share = (cpu_seconds(streamers) - before_s) / (time.monotonic() - begun_s)
        wafer.resume()
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=STALL_S)
    assert share < MOST_CORE_SHARE
    assert launcher.returncode == 128 + signal.SIGINT


def limited(path: Path, soft: int, hard: int) -> FcMnist:
    """Place whose commands start with these limits on open files, on 128 nodes."""
    site = path / "site.yaml"
    shipped = yaml.safe_load((Path(csrun.__path__[0]).parent / SITE).read_text())
    shipped["nodes"]["count"] = 128
    site.write_text(yaml.safe_dump(shipped))
    shell = ("bash", "-c", f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"', "bash")
    return FcMnist(path, around=shell, site=site)


def test_streamers_beyond_the_soft_limit_on_open_files_train(tmp_path: Path) -> None:
    """The user's code has the limit with which the launcher was started."""
    place = limited(tmp_path, 60, 400)
    said = "import resource\nprint('files', resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    run = place.copy(run=said + Path(RUN).read_text())
    layout = ("--total-nodes", "34", "--tasks-per-node", "1", "--cpus-per-task", "1")
    done = place.run(*layout, "--output", "task-%t", "python-ws", run, "--max_steps", "40")
    assert done.returncode == 0, done.stderr
    outputs = [path.read_text() for path in tmp_path.glob("task-*")]
    assert len(outputs) == 34
    assert all("files 60\n" in output for output in outputs)
    assert place.checkpoint(40).exists()


def test_more_streamers_than_the_hard_limit_allows_are_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    place = limited(tmp_path, 100, 150)
    done = place.wse("--max_steps", "1", layout=("--total-nodes", "128"))
    assert done.returncode == 2
    assert "252 streamers need 568 open files in one process" in done.stderr
    assert "`ulimit -n 568`" in done.stderr
    assert not place.model_dir.exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_streamers_train(tmp_path: Path) -> None:
    place = limited(tmp_path, 1024, 4096)
    layout = ("--total-nodes", "102", "--tasks-per-node", "10", "--cpus-per-task", "1")
    with place.start_wse("--max_steps", "1200", layout=layout) as process:
        out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    assert "Waiting for 1000 streamer(s)" in out
    assert place.checkpoint(1200).exists()


TOLD = """
import json, os, random, sys
import numpy as np
told = {
    "drawn": [np.random.rand(), random.random()],
    "server": ["csrun.nn" in sys.modules, len(os.listdir(f"/proc/{os.getppid()}/task"))],
    "environment": dict(os.environ),
    "cpus": len(os.sched_getaffinity(0)),
}
import csrun  # without it the server imports NumPy alone
with open("at" + os.environ["SLURM_PROCID"], "w") as file:
    json.dump(told, file)
"""


def test_tasks_have_the_environment_of_slurm_and_their_own_random_numbers(place: FcMnist) -> None:
    """The fork server has a single thread, since others must not be forked."""
    asked = ("--total-nodes", "4", "--tasks-per-node", "2", "--cpus-per-task", "1")
    assert place.run(*asked, "python-ws", place.script(TOLD)).returncode == 0
    tasks = [json.loads((place.path / f"at{rank}").read_text()) for rank in range(6)]
    drawn = zip(*(task["drawn"] for task in tasks), strict=True)
    assert [len(set(numbers)) for numbers in drawn] == [6, 6]
    assert [task["server"] for task in tasks] == [[True, 1]] * 6
    assert tasks[5]["cpus"] == 1
    expected = {
        "SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_NODEID": "3",
        "SLURM_NNODES": "4", "SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "1",
        "SLURM_JOB_NODELIST": "node1,node2,node3,node4", "SLURMD_NODENAME": "node4",
        "SLURM_NPROCS": "6", "SLURM_STEP_NUM_TASKS": "6", "SLURM_GTIDS": "4,5",
        "SLURM_TASKS_PER_NODE": "1(x2),2(x2)", "SLURM_NTASKS_PER_NODE": "2",
        "CSRUN_SITE": "local", "CSRUN_JOB_DIR": str(place.jobs / "1"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    assert expected.items() <= tasks[5]["environment"].items()


@pytest.mark.usefixtures("state")
def test_a_module_that_cannot_be_preloaded_is_the_tasks_to_report(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import no_such_module")
    program = (
        "import sys\n"
        "from csrun.launch import JobRequest, launch\n"
        "from csrun.site import load\n"
        "request = JobRequest(('python', 'run.py'), 1, 1, preload=('no_such_module',))\n"
        "sys.exit(launch(request, load('local')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "rank 0 (chief) on node1" in done.stderr
    assert "No module named 'no_such_module'" in done.stderr
