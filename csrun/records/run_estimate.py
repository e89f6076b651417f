"""Estimate of a run before it starts: estimate.json in the folder of its compile."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from math import ceil, log2
from pathlib import Path

import msgspec

from csrun.base import stored
from csrun.base.errors import CsrunError

FILE = "estimate.json"
FREE_SHARE = 0.9  # share of a machine's memory that other programs leave
COMPARED_STEPS = 100  # steps of a training after which it is compared with its estimate

log = logging.getLogger("csrun")


class RoleMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory of one task of a role; tasks: number of such tasks; holds: description of the
    memory.
    """

    role: str
    tasks: int
    nbytes: int
    holds: str


class ProductRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rate of a large matrix product on this machine, in FLOP/s.

    products: its form, as in the plan. share: of a step's FLOPs, that are computed at this rate
    """

    products: str
    share: float
    flops_per_s: float


class RunEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Estimate of a training or evaluation.

    wafer: bytes of one system's memory by kind. store: bytes of the training's state by kind.
    store_on_disk: MemoryX has the store on disk, and this much of it in memory; None in memory.
    host: memory of each role's tasks. is_measured: the step was run on this machine, else it is
    computed of floating-point operations at the rates of `products`, copies and of what the disk
    must carry. step_cpu_s: CPU time of a step, of all roles, which share `cpus` of this machine.
    limits: what limits the rate on the system, in words; system_rates: the rates of its numbers.
    largest_batch: samples that fit the system at once; None without activations. least_sram_bytes:
    memory of a system that the run fits, as it is compiled. max_steps: None where the run does not
    say.

    Units: times in seconds, rates in samples per second, memory in bytes
    """

    mode: str
    batch_size: int
    systems: int
    parameters: int
    layers: int
    sram_bytes: int
    wafer: Mapping[str, int]
    store: Mapping[str, int]
    store_on_disk: int | None
    host: tuple[RoleMemory, ...]
    host_available_bytes: int
    checkpoint_bytes: int
    checkpoint_s: float | None
    step_s: float
    step_spread: float
    is_measured: bool
    products: tuple[ProductRate, ...]
    step_cpu_s: float
    cpus: int
    system_samples_per_s: float
    largest_batch: int | None
    least_sram_bytes: int
    max_steps: int | None
    limits: str
    system_rates: str

    @property
    def host_bytes(self) -> int:
        """Memory of all tasks of the job."""
        return sum(each.tasks * each.nbytes for each in self.host)

    @property
    def host_gib(self) -> int:
        """Memory of the smallest common machine size that all tasks fit on."""
        return 1 << max(0, ceil(log2(self.host_bytes / (FREE_SHARE * (1 << 30)))))

    @property
    def is_cpu_bound(self) -> bool:
        """Return whether a step takes longer here because its tasks share the CPUs."""
        return self.step_s <= self.step_cpu_s / self.cpus

    @property
    def system_step_s(self) -> float:
        """Time of a step on the CS system."""
        return self.batch_size / self.system_samples_per_s if self.system_samples_per_s else 0.0

    def write(self, folder: Path) -> None:
        """Write it to a folder."""
        stored.write(folder / FILE, self, durable=False)

    @classmethod
    def read(cls, folder: Path) -> "RunEstimate | None":
        """Read it from a folder; None if it is missing or damaged, since it can be made again."""
        with suppress(OSError, CsrunError):
            return stored.read(folder / FILE, cls, "the estimate", "estimate again")
        return None


def estimated_step_s(compiled: Path) -> float | None:
    """Return the estimated time of a step of a compile; None if it was not estimated."""
    found = RunEstimate.read(compiled)
    return None if found is None else found.step_s


class EstimateCheck:
    """Comparison of a training's steps with the estimate, logged once; estimated_s: time of a
    step.
    """

    def __init__(self, estimated_s: float | None) -> None:
        self.estimated_s = estimated_s
        self._steps, self._took_s, self._is_logged = 0, 0.0, False

    def add(self, steps: int, took_s: float) -> None:
        """Add computed steps, and their time without waits for batches."""
        self._steps, self._took_s = self._steps + steps, self._took_s + took_s
        if self.estimated_s is None or self._is_logged or self._steps < COMPARED_STEPS:
            return
        self._is_logged = True
        took_ms, estimated_ms = 1e3 * self.step_s, 1e3 * self.estimated_s
        log.info(
            f"A step takes {took_ms:.4g} ms without its input, estimated were {estimated_ms:.4g} "
            f"ms ({took_ms / estimated_ms:.2f} of the estimate)"
        )

    @property
    def step_s(self) -> float:
        """Mean time of a step so far."""
        return self._took_s / self._steps if self._steps else 0.0
