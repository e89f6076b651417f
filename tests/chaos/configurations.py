"""What is disturbed: the same short training, started in different ways."""

import sys
from dataclasses import dataclass
from pathlib import Path

from support.fc_mnist import RUN, FcMnist
from support.sites import separate_site
from support.testbed import Testbed, site_file

GOAL = 1200  # steps: a few seconds of training
EVERY = 20  # steps between two checkpoints: so that many a kill comes while one is written
PER_NODE = ("--tasks-per-node", "2", "--cpus-per-task", "1")


@dataclass(frozen=True)
class Configuration:
    """A way to start the training. streamers: the ranks of those."""

    name: str
    interpreter: str
    layout: tuple[str, ...]
    streamers: tuple[int, ...]

    @property
    def roles(self) -> tuple[str, ...]:
        """What can be killed."""
        streaming = ("memoryx",) if self.interpreter == "python-ws" else ()
        server = () if self.name == "slurm" else ("forkserver",)
        return "launcher", *server, "chief", *streaming, "streamer", "wafer"

    @property
    def stores(self) -> tuple[str | None, ...]:
        """Where the weights may lie."""
        return ("memory", "disk") if self.interpreter == "python-ws" else (None,)

    def command(self) -> tuple[str, ...]:
        return *self.layout, self.interpreter, RUN, "--params", "params.yaml", "--mode", "train"


CONFIGURATIONS = {
    found.name: found
    for found in (
        Configuration("streaming", "python-ws", ("--total-nodes", "3", *PER_NODE), (2, 3)),
        Configuration("pipelined", "python", ("--total-nodes", "2", *PER_NODE), (1, 2, 3)),
        Configuration(
            "tcp",
            "python-ws",
            ("--site", "separate.yaml", "--total-nodes", "4", *PER_NODE),
            (2, 3, 4, 5),
        ),
        Configuration("slurm", "python-ws", ("--total-nodes", "3", *PER_NODE), (2, 3)),
    )
}


def place_of(
    folder: Path,
    name: str,
    cluster: Testbed | None,
    variables: tuple[tuple[str, str], ...] = (),
    store: str | None = None,
) -> FcMnist:
    """A folder in which the training can be started; `cluster` is Slurm's, `store` MemoryX's."""
    folder.mkdir()
    place = FcMnist(folder, variables=variables)
    if name == "slurm" and cluster is not None:
        conf = ("SLURM_CONF", str(cluster.conf))
        place = FcMnist(folder, site=site_file(folder, "slurm"), variables=(*variables, conf))
    separate_site(folder)
    place.configure(
        train_input__batch_size=32,
        model__hidden_sizes=[10],
        runconfig__max_steps=GOAL,
        runconfig__save_checkpoints_steps=EVERY,
        runconfig__keep_checkpoint_max=2,
        runconfig__log_steps=100,
        runconfig__weight_store=store,
    )
    return place


def undisturbed(folder: Path) -> bytes:
    """The last checkpoint of the training that nobody disturbs, in one process."""
    place = place_of(folder, "cpu", None)
    done = place.cpu("--mode", "train")
    if done.returncode:
        sys.exit(f"the undisturbed training failed:\n{done.stderr}")
    return place.checkpoint(GOAL).read_bytes()
