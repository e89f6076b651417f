"""A real Slurm cluster on loopback for tests, and its site file."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml
from support.jobs import until
from support.sites import SHIPPED

SCRIPT = Path(__file__).with_name("slurm-testbed")
NODES, CPUS = 4, 8
FIRST_PORT, PORTS = 20000, 20  # below the ports that the kernel gives away
#: Debian has Slurm's daemons where only root's PATH leads.
IS_INSTALLED = all(
    shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("slurmctld", "munged")
)


@dataclass(frozen=True)
class Testbed:
    """A running cluster; node1 has a gres of each system."""

    __test__ = False

    folder: Path
    nodes: int = NODES

    @property
    def conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        port = FIRST_PORT + PORTS * (os.getpid() % 500)
        return {
            **os.environ,
            "SLURM_TESTBED_DIR": str(self.folder),
            "SLURM_TESTBED_PORT": str(port),
            "SLURM_TESTBED_CPUS": str(CPUS),
            "SLURM_TESTBED_NO_INSTALL": "1",
            "SLURM_CONF": str(self.conf),
        }

    def call(self, *command: str, check: bool = True) -> str:
        """Run a command of Slurm on this cluster; return its output."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=check, timeout=120
        ).stdout

    def start(self) -> None:
        self._script("start", str(self.nodes))

    def stop(self) -> None:
        self._script("stop")
        shutil.rmtree(self.folder)

    def _script(self, *words: str) -> None:
        """What it says is for a person, not for who reads our output."""
        subprocess.run(
            ["bash", SCRIPT, *words], env=self.environment, check=True, stdout=subprocess.DEVNULL
        )

    def queue(self) -> list[str]:
        """States and names of Slurm's jobs."""
        return self.call("squeue", "--noheader", "--format=%T %i").splitlines()

    def end_jobs(self) -> None:
        """Cancel all jobs, and wait until they have ended."""
        self.call("scancel", "--user=root", "--quiet", check=False)
        until(lambda: not self.queue())

    def kill_node(self, node: str) -> None:
        """Kill a node: its slurmd and all processes started by it."""
        self.kill_slurmd(node)
        victims = _steps_of(node, self.conf)
        for signum in (signal.SIGSTOP, signal.SIGKILL):  # none is left to tell of another's end
            for victim in victims:
                os.kill(victim, signum)

    def revive_node(self, node: str) -> None:
        """Start the node's daemon again."""
        self._script("revive", node)

    def kill_slurmd(self, node: str) -> None:
        """Kill the node's daemon; its steps continue."""
        os.kill(int((self.folder / "pid" / f"slurmd-{node}.pid").read_text()), signal.SIGKILL)


def new_testbed(nodes: int = NODES) -> Testbed:
    folder = Path(tempfile.mkdtemp(prefix="csrun-slurm-"))
    folder.chmod(0o755)  # munged insists
    return Testbed(folder, nodes)


@contextmanager
def running_testbed(nodes: int = NODES) -> Iterator[Testbed]:
    """Cluster for one program, with which it ends, by SIGTERM or hang-up."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    cluster = new_testbed(nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        for signum in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)  # this takes a moment
        cluster.stop()


def site_file(folder: Path, scheduler: str, nodes: int = NODES, **changes: object) -> Path:
    """The shipped site's systems on nodes like the testbed's, under that scheduler."""
    site = yaml.safe_load(SHIPPED.read_text())
    site |= {"name": "testbed", "scheduler": scheduler}
    site["nodes"] = {"count": nodes, "cpus": CPUS, "memory_gb": 8}
    site["defaults"] = {"nodes": NODES, "tasks_per_node": 2, "cpus_per_task": 2}
    if scheduler == "slurm":
        site |= {"gres": "cs:{system}:1", "gres_node": "node1"}
    path = folder / f"{scheduler}.yaml"
    path.write_text(yaml.safe_dump(site | changes))
    return path


def _steps_of(node: str, conf: Path) -> list[int]:
    """slurmstepd processes of the node, and their descendants."""
    found = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "slurmstepd":
            below = process.children(recursive=True)
            if any(_is_on(node, conf, child) for child in below):
                found += [process.pid, *(child.pid for child in below)]
    return found


def _is_on(node: str, conf: Path, process: psutil.Process) -> bool:
    try:
        variables = process.environ()
    except psutil.Error:
        return False
    return variables.get("SLURMD_NODENAME") == node and variables.get("SLURM_CONF") == str(conf)
