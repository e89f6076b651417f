"""How soon 98 tasks of a Slurm job report in, beside a bare srun of the same shape.

The cluster is a real one on loopback: 14 nodes, each with its slurmd. Heterogeneous jobs start when
its scheduler looks, once a second; both sides wait for that alike.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' own support

from result import Result, interleaved
from support.testbed import IS_INSTALLED, Testbed, new_testbed, site_file

from csrun.launch.srun import Resources, srun_words
from csrun.site import JobLayout

NODES, ALONE, PER_NODE = 14, 2, 8  # 2 + 12 x 8 = 98 tasks
ROUNDS = 5
LIMIT = 1.2
SHAPE = JobLayout(NODES, PER_NODE, 1, ALONE, cyclic=False)
OPTIONS = ("--total-nodes", str(NODES), "--tasks-per-node", str(PER_NODE),
           "--cpus-per-task", "1", "--single-task-nodes", str(ALONE))  # fmt: skip
LAUNCHER = Path(sys.executable).with_name("csrun_wse")
OURS, BARE = "csrun_wse, until all have reported in", "srun python -c 'import numpy'"


def start_times(testbed: Testbed, folder: Path) -> list[Result]:
    """Seconds from each command to the moment at which all of its tasks live."""
    site = site_file(folder, "slurm", NODES)
    sides = {
        OURS: lambda: _until_reported(testbed, folder, site),
        BARE: lambda: _bare(testbed),
    }
    medians = interleaved(sides, ROUNDS)
    bare = medians[BARE]
    return [
        Result("slurm", f"{SHAPE.tasks} tasks start", side, "s", value, BARE, value / bare, ROUNDS,
               at_most=LIMIT if side == OURS else None)
        for side, value in medians.items()
    ]  # fmt: skip


def _until_reported(testbed: Testbed, folder: Path, site: Path) -> float:
    environment = {**testbed.environment, "CSRUN_STATE_DIR": str(folder), "CSRUN_SITE": str(site)}
    began_s = time.perf_counter()
    with subprocess.Popen(
        [LAUNCHER, *OPTIONS, "true"], env=environment, text=True, cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as launcher:  # fmt: skip
        assert launcher.stderr is not None
        next(line for line in launcher.stderr if "tasks reported in" in line)
        taken_s = time.perf_counter() - began_s
        launcher.communicate()
    return taken_s


def _bare(testbed: Testbed) -> float:
    command = (sys.executable, "-c", "import numpy")
    began_s = time.perf_counter()
    subprocess.run(srun_words(SHAPE, command, Resources(alone_cpus=8)), env=testbed.environment,
                   check=True, capture_output=True)  # fmt: skip
    return time.perf_counter() - began_s


if __name__ == "__main__":
    if not IS_INSTALLED:
        sys.exit("slurm: slurmctld and munged are not installed: apt-get install slurm-wlm munge")
    cluster = new_testbed(NODES)
    try:
        cluster.start()
        with tempfile.TemporaryDirectory() as place:
            for result in start_times(cluster, Path(place)):
                result.print()
    finally:
        cluster.stop()
