"""A site: its nodes, CS systems, scheduler and defaults."""

from enum import StrEnum
from functools import cache
from typing import Annotated, Literal

import msgspec

from csrun.base.mode import GRACE_S, ExecutionMode

DEFAULT_PORT = 9000
DAY_S = 86_400  # no boot takes longer: a longer one is a mistake in the file
Positive = Annotated[int, msgspec.Meta(ge=1)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, le=1e15)]  # finite, and a petahertz of room
Seconds = Annotated[float, msgspec.Meta(ge=0, le=DAY_S)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


RoleName = Literal["chief", "memoryx", "swarmx", "streamer"]
SlurmOptionValues = dict[str, str | int | bool]


class Scheduler(StrEnum):
    """Scheduler that starts the tasks of a job."""

    LOCAL = "local"
    SLURM = "slurm"


class Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The CPU nodes, all alike. Units: memory_gb in GiB.

    With `addresses`, one a node, the nodes of a local site act as machines of their own: a task
    reaches those of other nodes by TCP, under these IP addresses. Without, they share memory.
    """

    count: Positive
    cpus: Positive
    memory_gb: Positive
    name_prefix: Name = "node"
    addresses: tuple[str, ...] = ()


class System(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One CS system. `mode` is the execution mode it has when nobody has ever configured it.

    Units: sram_kb_per_core in KiB, clock_hz, io_gbit_per_s in 10^9 bit/s; boot_s, from the
    command that activates or reboots it until it takes jobs
    """

    name: Name
    address: str
    mode: ExecutionMode
    fabric_width: Positive
    fabric_height: Positive
    usable_cores: Positive
    sram_kb_per_core: Positive
    clock_hz: PositiveFloat
    io_gbit_per_s: PositiveFloat
    multiply_adds_per_core_cycle: Positive
    boot_s: Seconds = 0.0

    @property
    def endpoint(self) -> str:
        """The address with its port."""
        return with_port(self.address)

    def is_like(self, other: "System") -> bool:
        """True if what is compiled for the other one runs on this one."""
        # Nothing of these is in a compiled program.
        same = {"name": other.name, "address": other.address, "mode": other.mode}
        return msgspec.structs.replace(self, **same, boot_s=other.boot_s) == other

    @property
    def usable_width(self) -> int:
        """Columns of the part of the fabric that takes programs.

        It is the largest rectangle of at most `usable_cores`, and of several such the one most like
        the fabric in shape; the columns and rows around it stay free.
        """
        return _usable_width(self.fabric_width, self.fabric_height, self.usable_cores)

    @property
    def usable_height(self) -> int:
        """Rows of that part."""
        return min(self.fabric_height, self.usable_cores // self.usable_width)

    @property
    def sram_bytes(self) -> int:
        """Memory of all cores that a program can use."""
        return self.usable_width * self.usable_height * self.sram_bytes_per_core

    @property
    def sram_bytes_per_core(self) -> int:
        """Memory of one core."""
        return self.sram_kb_per_core * 1024


@cache  # a compile asks some dozen times
def _usable_width(width: int, height: int, cores: int) -> int:
    def size_and_shape(columns: int) -> tuple[int, int]:
        rows = min(height, cores // columns)
        return columns * rows, -abs(columns * height - rows * width)

    return max(range(1, width + 1), key=size_and_shape)


def with_port(address: str) -> str:
    """A host, or host:port, as host:port; hosts' names know no upper case."""
    return (address if ":" in address else f"{address}:{DEFAULT_PORT}").lower()


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults of csrun_wse's options: DEF_NODES, DEF_TASKS, DEF_CPUS."""

    nodes: Positive
    tasks_per_node: Positive
    cpus_per_task: Positive


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Retention of ended jobs' folders: the newest `keep_count`, of these those of the last
    `keep_days`, of these as many as fit into `keep_mb` with those of running jobs.

    Units: keep_mb in 10^6 bytes
    """

    keep_count: Positive = 20
    keep_days: PositiveFloat | None = None
    keep_mb: Positive | None = None


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site file, checked.

    `gres` is the scheduler's resource by which a job asks for a CS system, `{system}` in it the
    system's name (`cs:{system}:1`), `gres_node` the node that has it; a local site leases its
    systems itself and has neither. `jobs_dir` is the folder of a cluster's job folders, which all
    nodes must share; without it they are in csrun's state folder. `container` is the image that
    tasks of a cluster run in. `grace_s` is the time for a checkpoint after the signal to end.
    `slurm_options` are asked for with every job of a cluster, those of `slurm_options_by_role` over
    them by the nodes whose first task has that role. `prolog` are lines of bash, one
    command each, that come before its scripts and tasks.
    `jobs` says which folders of ended jobs are kept.
    `shared`: several accounts of one group have the site, in one state folder (docs/cs-login.md).
    """

    name: Name
    scheduler: Scheduler
    nodes: Nodes
    defaults: Defaults
    systems: Annotated[tuple[System, ...], msgspec.Meta(min_length=1)]
    container: str | None = None
    jobs_dir: str | None = None
    mount_dirs: tuple[str, ...] = ()
    grace_s: Seconds = GRACE_S
    gres: str | None = None
    gres_node: str | None = None
    slurm_options: SlurmOptionValues = {}
    slurm_options_by_role: dict[RoleName, SlurmOptionValues] = {}
    prolog: tuple[str, ...] = ()
    shared: bool = False
    jobs: Retention = Retention()

    @property
    def gres_names_systems(self) -> bool:
        """True if a job's resources tell which systems it asks for."""
        return "{system}" in (self.gres or "")

    def gres_of(self, *systems: str) -> str | None:
        """The resources by which a job asks for those systems, all in one request."""
        if self.gres is None or not systems:
            return None
        return ",".join(self.gres.replace("{system}", system) for system in systems)
