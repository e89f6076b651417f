"""Configurations to disturb: the same short training, started in different ways."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from support.fc_mnist import FOLDER, RUN, FcMnist
from support.sites import SHIPPED, STREAMING_8, separate_site
from support.testbed import Testbed, site_file

GOAL = 400  # steps: a second or more of training
EVERY = 20  # steps between two checkpoints: so that many a kill comes while one is written
PER_NODE = ("--tasks-per-node", "2", "--cpus-per-task", "1")
TWO_CPUS = ("--tasks-per-node", "2", "--cpus-per-task", "2")
RUN_TORCH = str(FOLDER / "run_torch.py")
EARLY_STOPPING = str(Path(__file__).with_name("early_stopping.py"))
SMALL = {"usable_cores": 48, "sram_kb_per_core": 1}  # a batch has no room, nor has a first kernel
WAFERS = tuple(f"wafer-cs2-{number:02}" for number in range(1, 6))
DEEP = {"model__hidden_sizes": [50] * 8, "runconfig__max_group_bytes": 8192}  # of several groups
#: Of two threads, where a step is long enough.
WIDE = {"model__hidden_sizes": [500, 300], "train_input__batch_size": 64}
CUT = {**DEEP, "runconfig__micro_batch_size": 16}

Results = dict[str, bytes]


@dataclass(frozen=True)
class Configuration:
    """Configuration of a training. streamers, memoryx, swarmx: ranks of these tasks.

    wafers: prefixes of their logs. words: arguments after the script's others. options: additional
    keys of params.yaml. is_own: bits depend on the number of systems, so that the reference is a
    job. An interpreter of "": one process, without a job.
    """

    name: str
    interpreter: str
    layout: tuple[str, ...]
    streamers: tuple[int, ...]
    memoryx: tuple[int, ...] = (1,)
    swarmx: tuple[int, ...] = ()
    wafers: tuple[str, ...] = ("wafer",)
    script: str = RUN
    words: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    is_own: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles that can be killed."""
        if not self.interpreter:
            return ("launcher",)
        streaming = ("memoryx",) if self.interpreter == "python-ws" else ()
        server = () if self.name == "slurm" else ("forkserver",)
        between = ("swarmx",) if self.swarmx else ()
        return "launcher", *server, "chief", *streaming, *between, "streamer", "wafer"

    def logs_of(self, role: str) -> tuple[str, ...]:
        """Prefixes of the log names of a role."""
        ranks = {
            "chief": (0,),
            "memoryx": self.memoryx,
            "swarmx": self.swarmx,
            "streamer": self.streamers,
        }
        return tuple(f"rank-{rank:05}" for rank in ranks.get(role, ())) or (
            self.wafers if role == "wafer" else (role,)
        )

    @property
    def stores(self) -> tuple[str | None, ...]:
        """Possible places of weights, which run_torch.py does not set."""
        is_told = self.interpreter == "python-ws" and self.script == RUN
        return ("memory", "disk") if is_told else (None,)

    @property
    def is_torch(self) -> bool:
        return self.script in (RUN_TORCH, EARLY_STOPPING)

    @property
    def tells_phases(self) -> bool:
        """Whether the script writes its epoch and activity into `phase`."""
        return self.script == EARLY_STOPPING

    @property
    def results(self) -> tuple[str, ...]:
        """Result files; the last one is written when the training ends."""
        if self.script == EARLY_STOPPING:
            return "best.pt", "final.pt", "history.json"
        return (f"model_dir/model-ckpt-{GOAL}.safetensors",)

    @property
    def arguments(self) -> tuple[str, ...]:
        if self.script == EARLY_STOPPING:
            return self.words
        common = "--params", "params.yaml", "--mode", "train", "--model_dir", "model_dir"
        return *common, *self.words

    def command(self) -> tuple[str, ...]:
        return *self.layout, self.interpreter, self.script, *self.arguments

    def start(self, place: FcMnist) -> "subprocess.Popen[str]":
        """Start the training, by its launcher if it is a job."""
        if self.interpreter:
            return place.start(*self.command())
        return place.start_python(self.script, *self.arguments)

    @property
    def reference(self) -> str:
        """Name of the reference; equal trainings share one."""
        return f"{self.is_own} {self.script} {self.words} {sorted(self.options.items())}"


CONFIGURATIONS = {
    found.name: found
    for found in (
        Configuration("streaming", "python-ws", ("--total-nodes", "3", *PER_NODE), (2, 3)),
        Configuration(
            "pipelined",
            "python",
            ("--total-nodes", "2", *TWO_CPUS),
            (1, 2, 3),
            options=WIDE,
        ),
        Configuration(
            "tcp",
            "python-ws",
            ("--site", "separate.yaml", "--total-nodes", "4", *PER_NODE),
            (2, 3, 4, 5),
        ),
        Configuration(
            "servers",
            "python-ws",
            ("--site", "small.yaml", "--total-nodes", "4", *PER_NODE, "--num-wgt-servers", "2"),
            (3, 4),
            memoryx=(1, 2),
            options=CUT,
        ),
        Configuration(
            "systems",
            "python-ws",
            ("--site", "streaming-8", "--total-nodes", "3", *PER_NODE),
            (2, 3),
            wafers=WAFERS[:2],
            options={**DEEP, "runconfig__num_csx": 2},
            is_own=True,
        ),
        Configuration(
            "systems-servers",
            "python-ws",
            ("--site", "streaming-8", "--total-nodes", "4", *PER_NODE, "--num-wgt-servers", "2"),
            (3, 4),
            memoryx=(1, 2),
            wafers=WAFERS[:2],
            options={**DEEP, "runconfig__num_csx": 2},
            is_own=True,
        ),
        Configuration(
            "swarmx",
            "python-ws",
            ("--site", "separate.yaml", "--total-nodes", "5", *PER_NODE),
            (4, 5),
            swarmx=(2, 3),
            wafers=WAFERS,
            words=("--num_csx", "5"),
            options={"runconfig__num_csx": 5, "train_input__batch_size": 30},
            is_own=True,
        ),
        Configuration(
            "parts",
            "python-ws",
            ("--site", "small.yaml", "--total-nodes", "3", *PER_NODE),
            (2, 3),
            options=CUT,
        ),
        Configuration(
            "torch",
            "python-ws",
            ("--total-nodes", "3", *PER_NODE),
            (2, 3),
            script=RUN_TORCH,
        ),
        Configuration("stopping-process", "", (), (), script=EARLY_STOPPING, words=("one",)),
        Configuration(
            "stopping",
            "python-ws",
            ("--total-nodes", "3", *PER_NODE),
            (2, 3),
            script=EARLY_STOPPING,
            words=("several",),
        ),
        Configuration(
            "stopping-pipelined",
            "python-pt",
            ("--total-nodes", "2", *PER_NODE),
            (1, 2, 3),
            script=EARLY_STOPPING,
            words=("several",),
        ),
        Configuration("slurm", "python-ws", ("--total-nodes", "3", *PER_NODE), (2, 3)),
    )
}


def place_of(
    folder: Path,
    configuration: Configuration,
    cluster: Testbed | None = None,
    variables: tuple[tuple[str, str], ...] = (),
    store: str | None = None,
) -> FcMnist:
    """Folder to start the training in; `cluster` is Slurm's, `store` MemoryX's."""
    folder.mkdir()
    place = FcMnist(folder, variables=variables)
    if configuration.name == "slurm" and cluster is not None:
        conf = ("SLURM_CONF", str(cluster.conf))
        place = FcMnist(folder, site=site_file(folder, "slurm"), variables=(*variables, conf))
    separate_site(folder, shipped=STREAMING_8)
    _small_site(folder)
    options = {
        "train_input__batch_size": 32,
        "model__hidden_sizes": [10],
        "runconfig__max_steps": GOAL,
        "runconfig__save_checkpoints_steps": EVERY,
        "runconfig__keep_checkpoint_max": 2,
        "runconfig__log_steps": 100,
        "runconfig__weight_store": store,
        **configuration.options,
    }
    place.configure(**options)
    return place


def _small_site(folder: Path) -> None:
    """Shipped site with wafers just large enough for the model."""
    site = yaml.safe_load(SHIPPED.read_text())
    site["systems"] = [{**system, **SMALL} for system in site["systems"]]
    (folder / "small.yaml").write_text(yaml.safe_dump(site))


def undisturbed(folder: Path, configuration: Configuration) -> Results:
    """Result of an undisturbed training, in one process if possible."""
    place = place_of(folder, configuration)
    if configuration.is_own:
        command = [sys.executable, "-m", "csrun.cli.csrun_wse", *configuration.command()]
    else:
        command = [sys.executable, configuration.script, *configuration.arguments]
    state = {"CSRUN_STATE_DIR": str(folder / "state")}
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **state}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"the undisturbed training failed:\n{done.stderr}")
    return results_in(place, configuration)


def results_in(place: FcMnist, configuration: Configuration) -> Results:
    """Result files so far, by name."""
    paths = {name: place.path / name for name in configuration.results}
    return {name: path.read_bytes() for name, path in paths.items() if path.exists()}


def is_over(place: FcMnist, configuration: Configuration) -> bool:
    return (place.path / configuration.results[-1]).exists()
