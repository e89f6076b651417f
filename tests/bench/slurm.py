"""Start time of 98 tasks on Slurm, compared with a bare srun of this shape and one machine.

The cluster is a real one on loopback: 14 nodes, each with its slurmd, on the CPUs of this machine.
Heterogeneous jobs start when its scheduler looks, once a second; all Slurm sides wait for that.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' own support

from launch import FC_MNIST, MARK
from result import Result, interleaved
from support.testbed import IS_INSTALLED, Testbed, running_testbed, site_file

from csrun.launch.srun import Resources, srun_argv
from csrun.site import JobLayout

NODES, ALONE, PER_NODE = 14, 2, 8  # 2 + 12 x 8 = 98 tasks
ROUNDS = 5
POLL_S = 0.002
STALL_S = 120.0
# The first is not 1, as 14 nodes here import all of a run.py's modules on the same cores, 0.64 s of
# processor time each, beside 98 imports of NumPy alone, 0.11 s each.
FIRST_LINE_LIMIT, STREAMERS_LIMIT = 1.2, 2.0
SHAPE = JobLayout(NODES, PER_NODE, 1, ALONE, cyclic=False)
OPTIONS = ("--total-nodes", str(NODES), "--tasks-per-node", str(PER_NODE),
           "--cpus-per-task", "1", "--single-task-nodes", str(ALONE))  # fmt: skip
LAUNCHER = str(Path(sys.executable).with_name("csrun_wse"))
OURS = "csrun_wse, all in their first line"
BARE = "srun python, all after `import numpy`"
READY, LOCAL = "csrun_wse on Slurm, streamers ready", "csrun_wse on one machine, streamers ready"


def first_lines(testbed: Testbed, folder: Path) -> list[Result]:
    """Seconds from each command to the moment at which all of its tasks have run a line."""
    (folder / "script.py").write_text(MARK)
    ours = (*_csrun(folder, "slurm"), "python", "script.py")
    python = (sys.executable, "-c", f"import numpy; {MARK}")
    bare = srun_argv(SHAPE, python, Resources(alone_cpus=8))
    sides = {
        OURS: lambda: _until_marked(ours, testbed, folder),
        BARE: lambda: _until_marked(bare, testbed, folder),
    }
    return _compared(f"{SHAPE.tasks} tasks start on Slurm", sides, OURS, BARE, FIRST_LINE_LIMIT)


def streamers(testbed: Testbed, folder: Path) -> list[Result]:
    """Seconds from the command to 96 streamers that deliver, fc_mnist's compile among them."""
    on_slurm, here = _csrun(folder, "slurm"), _csrun(folder, "local")
    sides = {
        READY: lambda: _until_ready(on_slurm, testbed, folder),
        LOCAL: lambda: _until_ready(here, testbed, folder),
    }
    return _compared(f"{SHAPE.tasks} tasks stream", sides, READY, LOCAL, STREAMERS_LIMIT)


def _compared(
    workload: str, sides: Mapping[str, Callable[[], float]], ours: str, baseline: str, limit: float
) -> list[Result]:
    medians = interleaved(sides, ROUNDS)
    base = medians[baseline]
    return [
        Result("slurm", workload, side, "s", value, baseline, value / base, ROUNDS,
               at_most=limit if side == ours else None)
        for side, value in medians.items()
    ]  # fmt: skip


def _csrun(folder: Path, scheduler: str) -> tuple[str, ...]:
    return (LAUNCHER, "--site", str(site_file(folder, scheduler, NODES)), *OPTIONS)


def _until_marked(command: Sequence[str], testbed: Testbed, folder: Path) -> float:
    """From a command to the byte that the last of its tasks adds to a file."""
    marks = folder / "marks"
    marks.write_text("")
    began_s = time.perf_counter()
    with subprocess.Popen(
        [*command, str(marks)], env=_environment(testbed, folder), cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        while marks.stat().st_size < SHAPE.tasks:
            time.sleep(POLL_S)
            if time.perf_counter() - began_s > STALL_S:
                raise TimeoutError(f"{command[0]}: not all tasks came to life")
        taken_s = time.perf_counter() - began_s
        process.wait()
    return taken_s


def _until_ready(command: Sequence[str], testbed: Testbed, folder: Path) -> float:
    """From a command to the line that says that the streamers are ready."""
    shutil.rmtree(folder / "model_dir", ignore_errors=True)  # it is compiled each time
    began_s = time.perf_counter()
    with subprocess.Popen(
        [*command, "python-ws", FC_MNIST, "--mode", "train", "--max_steps", "20"],
        env=_environment(testbed, folder), text=True, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        next(line for line in launcher.stdout if "Streamers are ready" in line)
        taken_s = time.perf_counter() - began_s
        launcher.communicate()
    return taken_s


def _environment(testbed: Testbed, folder: Path) -> dict[str, str]:
    return {**testbed.environment, "CSRUN_STATE_DIR": str(folder / "state")}


if __name__ == "__main__":
    if not IS_INSTALLED:
        sys.exit("slurm: slurmctld and munged are not installed: apt-get install slurm-wlm munge")
    with running_testbed(NODES) as cluster, tempfile.TemporaryDirectory() as place:
        for measure in (first_lines, streamers):
            for result in measure(cluster, Path(place)):
                result.print()
