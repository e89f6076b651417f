"""A site: its nodes, CS systems, scheduler and defaults."""

from enum import StrEnum
from functools import cache
from typing import Annotated, Literal

import msgspec

from csrun.base.mode import GRACE_S, ExecutionMode

DEFAULT_PORT = 9000
DAY_S = 86_400  # above any real boot time: a longer one is a mistake in the file
Positive = Annotated[int, msgspec.Meta(ge=1)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, le=1e15)]  # finite, and far above any clock
Seconds = Annotated[float, msgspec.Meta(ge=0, le=DAY_S)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


RoleName = Literal["chief", "memoryx", "swarmx", "streamer"]
SlurmOptionValues = dict[str, str | int | bool]


class Scheduler(StrEnum):
    """Scheduler that starts the tasks of a job."""

    LOCAL = "local"
    SLURM = "slurm"


class Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPU nodes, all with the same properties.

    memory_gb: memory of a node, in GiB.
    addresses: one IP address per node. With them the nodes of a local site behave as separate
        machines: tasks connect to other nodes by TCP at these addresses. Without them tasks share
        memory.
    """

    count: Positive
    cpus: Positive
    memory_gb: Positive
    name_prefix: Name = "node"
    addresses: tuple[str, ...] = ()


class System(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One CS system.

    mode: its execution mode until it is first configured.

    Units: sram_kb_per_core in KiB, clock_hz, io_gbit_per_s in 10^9 bit/s; boot_s is the time from
    the command that activates or reboots it until it accepts jobs
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
        """Return whether a program that was compiled for the other system runs on this one."""
        # A compiled program depends on none of these.
        same = {"name": other.name, "address": other.address, "mode": other.mode}
        return msgspec.structs.replace(self, **same, boot_s=other.boot_s) == other

    @property
    def usable_width(self) -> int:
        """Columns of the part of the fabric that programs can use.

        That part is the largest rectangle of at most `usable_cores` cores; of several, the one
        closest to the fabric's aspect ratio. The other columns and rows stay unused.
        """
        return _usable_width(self.fabric_width, self.fabric_height, self.usable_cores)

    @property
    def usable_height(self) -> int:
        """Rows of the part of the fabric that programs can use."""
        return min(self.fabric_height, self.usable_cores // self.usable_width)

    @property
    def sram_bytes(self) -> int:
        """Memory of all cores that a program can use."""
        return self.usable_width * self.usable_height * self.sram_bytes_per_core

    @property
    def sram_bytes_per_core(self) -> int:
        """Memory of one core."""
        return self.sram_kb_per_core * 1024


@cache  # cached because a compile reads it dozens of times
def _usable_width(width: int, height: int, cores: int) -> int:
    def size_and_shape(columns: int) -> tuple[int, int]:
        rows = min(height, cores // columns)
        return columns * rows, -abs(columns * height - rows * width)

    return max(range(1, width + 1), key=size_and_shape)


def with_port(address: str) -> str:
    """Add the default port to a host without one, and convert the name to lower case."""
    return (address if ":" in address else f"{address}:{DEFAULT_PORT}").lower()


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults of csrun_wse's options: DEF_NODES, DEF_TASKS, DEF_CPUS."""

    nodes: Positive
    tasks_per_node: Positive
    cpus_per_task: Positive


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Retention of the folders of ended jobs. All three limits apply.

    keep_count: number of newest folders.
    keep_days: maximum age.
    keep_mb: maximum total size, including the folders of running jobs, in 10^6 bytes.
    """

    keep_count: Positive = 20
    keep_days: PositiveFloat | None = None
    keep_mb: Positive | None = None


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site file, validated.

    gres: resource by which a Slurm job requests a CS system; `{system}` in it stands for the
        system's name (`cs:{system}:1`). A local site leases its systems itself and has none.
    gres_node: node that has these resources.
    jobs_dir: folder of a cluster's job folders, shared by all nodes; default: csrun's state folder.
    container: image in which the tasks of a cluster run.
    grace_s: time between the signal to end and the kill, for a checkpoint.
    slurm_options: options of every Slurm job of this site.
    slurm_options_by_role: options that override them on the nodes whose first task has this role.
    prolog: lines of bash, one command each, before scripts and tasks.
    jobs: retention of the folders of ended jobs.
    shared: accounts of one group share the site and its state folder (docs/cs-login.md).
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
        """Return whether a job's resources name the requested systems."""
        return "{system}" in (self.gres or "")

    def gres_of(self, *systems: str) -> str | None:
        """Return the resources by which a job requests these systems in one request."""
        if self.gres is None or not systems:
            return None
        return ",".join(self.gres.replace("{system}", system) for system in systems)
