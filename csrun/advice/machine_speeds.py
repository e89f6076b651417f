"""Speeds of this machine, measured once: products, copies, disks.

They are cached per CPU model, CPUs and versions; of products, those in each form that a program
has had. Products and copies are timed by CPU time, so
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
from csrun.executable import Executable, bfloat16, machine_code
from csrun.executable.arrays import Array, empty
from csrun.executable.bfloat16 import Products, instructions_of
from csrun.executable.kernel_code import numpy_call
from csrun.launch.preflight.installation import cpu_and_flags, disk_speed

FOLDER = "machine_speeds"
PRODUCT = 2048  # rows of the square matrices whose product is timed
COPY_BYTES = 256 << 20  # more than any cache holds
ROUNDS = 3


class MachineSpeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Speeds of this machine.

    copy_bytes_per_s: of one thread, for bytes copied. flops_per_s: of a large matrix product on all
    CPUs, by the form of a program's products. disk_bytes_per_s: of writing, by the device number of
    a folder's disk.
    """

    copy_bytes_per_s: float
    flops_per_s: dict[Products, float] = {}
    disk_bytes_per_s: dict[str, float] = {}


def speeds_here(executable: Executable) -> tuple[MachineSpeeds, float | None]:
    """Speeds of this machine, and in bytes/s of the disk of a compile; None if it is read-only.

    What is not in the cache, or damaged there, is measured.
    """
    path = cache_dir() / FOLDER / f"{_key()}.json"
    before = speeds = _cached(path)
    if speeds is None:
        speeds = MachineSpeeds(copy_rate())
    rates, disks = dict(speeds.flops_per_s), dict(speeds.disk_bytes_per_s)
    for form in forms_of(executable):
        if form not in rates:
            rates[form] = product_rate(executable, form)
    device = str(os.stat(executable.directory).st_dev)
    if device not in disks and (measured := disk_speed(executable.directory)) is not None:
        disks[device] = 1e6 * measured
    speeds = msgspec.structs.replace(speeds, flops_per_s=rates, disk_bytes_per_s=disks)
    if speeds != before:
        _keep(path, speeds)
    return speeds, disks.get(device)


def forms_of(executable: Executable) -> dict[Products, float]:
    """Shares of a program's floating-point operations by the form of its products, float32 last.

    Kernels that are no products count as the products that are not by instructions for bfloat16.
    """
    kernels, plan = executable.kernels, executable.plan
    if kernels is None or not kernels.manifest.products or not machine_code.is_supported():
        return {"blas": 1.0}
    instructions = kernels.manifest.instructions
    if instructions is None or not bfloat16.has(instructions):
        return {"own": 1.0}
    return {instructions: plan.bfloat16_share, "own": 1 - plan.bfloat16_share}


def product_rate(executable: Executable, form: Products) -> float:
    """Return the rate of a large matrix product on all CPUs, in floating-point operations/s.

    form: one of the program's
    """
    cpus, arrays = len(os.sched_getaffinity(0)), _operands()
    if executable.kernels is None or form == "blas":
        call = numpy_call(*arrays)
    else:
        in_pairs = instructions_of(form) is not None
        call = executable.kernels.product_call(executable.directory, arrays, cpus, in_pairs)
    return cpus * 2 * PRODUCT**3 / _cpu_s(call)


def _operands() -> tuple[Array, Array, Array]:
    """Two matrices of ones, and one for their product."""
    a, b, out = (
        empty(4 * PRODUCT * PRODUCT).view(np.float32).reshape(PRODUCT, PRODUCT) for _ in range(3)
    )
    a[...], b[...] = 1, 1
    return a, b, out


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
