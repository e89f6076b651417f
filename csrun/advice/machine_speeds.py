"""Speeds of this machine, measured once: products, copies, disks.

They are cached per CPU model, CPUs and versions. Products and copies are timed by CPU time, so
other programs that run meanwhile change them little.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import process_time

import msgspec
import numpy as np

from csrun.base import stored
from csrun.base.errors import CsrunError
from csrun.base.files import make_private
from csrun.base.version import installed_versions
from csrun.context import cache_dir
from csrun.launch.preflight.installation import cpu_and_flags, disk_speed

FOLDER = "machine_speeds"
PRODUCT = 2048  # rows of the square matrices whose product is timed
COPY_BYTES = 256 << 20  # more than any cache holds
ROUNDS = 3


class MachineSpeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Speeds of this machine.

    flops_per_s: of a large matrix product on all CPUs. copy_bytes_per_s: of one thread, for bytes
    copied. disk_bytes_per_s: of writing, by the device number of a folder's disk.
    """

    flops_per_s: float
    copy_bytes_per_s: float
    disk_bytes_per_s: dict[str, float] = {}


def speeds_here(folder: Path) -> tuple[MachineSpeeds, float | None]:
    """Speeds of this machine, and of a folder's disk in bytes/s; None where none can be written.

    What is not in the cache, or damaged there, is measured.
    """
    path = cache_dir() / FOLDER / f"{_key()}.json"
    speeds, known = _cached(path), True
    if speeds is None:
        speeds, known = MachineSpeeds(product_rate(), copy_rate()), False
    device = str(os.stat(folder).st_dev)
    disk = speeds.disk_bytes_per_s.get(device)
    if disk is None and (measured := disk_speed(folder)) is not None:
        disk, known = 1e6 * measured, False
        disks = {**speeds.disk_bytes_per_s, device: disk}
        speeds = msgspec.structs.replace(speeds, disk_bytes_per_s=disks)
    if not known:
        _keep(path, speeds)
    return speeds, disk


def product_rate() -> float:
    """Return the rate of a large matrix product on all CPUs, in floating-point operations/s."""
    one = np.ones((PRODUCT, PRODUCT), np.float32)
    cpus = len(os.sched_getaffinity(0))
    return cpus * 2 * PRODUCT**3 / _cpu_s(lambda: one @ one)


def copy_rate() -> float:
    """Return the bytes/s at which one thread copies an array that no cache holds."""
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.zeros_like(source)
    return COPY_BYTES / _cpu_s(lambda: np.copyto(target, source))


def _cpu_s(call: Callable[[], object]) -> float:
    """Median CPU time of a call, over all threads of this process."""
    call()  # wakes threads, and gets memory
    took_s = []
    for _ in range(ROUNDS):
        began_s = process_time()
        call()
        took_s.append(process_time() - began_s)
    return median(took_s)


def _key() -> str:
    """Name of this machine's file: its CPU, the CPUs that this process may use, and versions."""
    cpu, _ = cpu_and_flags()
    cpus = len(os.sched_getaffinity(0))
    parts = {"CPU": cpu, "CPUs": cpus, **installed_versions()}
    return hashlib.blake2b(msgspec.json.encode(parts, order="sorted"), digest_size=16).hexdigest()


def _cached(path: Path) -> MachineSpeeds | None:
    with suppress(OSError, CsrunError):
        return stored.read(path, MachineSpeeds, "the machine's speeds")
    return None


def _keep(path: Path, speeds: MachineSpeeds) -> None:
    with suppress(OSError, CsrunError):  # a full disk: measured again next time
        make_private(path.parent)
        stored.write(path, speeds, durable=False)
