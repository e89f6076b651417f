"""Checks of this machine and installation for one user: arithmetic, speed, capacity."""

import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

import msgspec

from csrun.base.errors import CsrunError
from csrun.base.framework import TORCH
from csrun.base.version import VERSION, installed_versions
from csrun.context import environment, state_dir
from csrun.launch.preflight.checks import CheckResult, Status, judge
from csrun.site import Scheduler, Site

LEAST_PYTHON = (3, 11)
REQUIRED_CPU_FLAGS = ("avx2", "fma")  # of machine code
DISK_TEST_BYTES = 64 << 20
LEAST_DISK_MB_PER_S = 30.0
ONE_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
LEAST_CGROUP_MB = 2048
_SLURM_COMMANDS = ("srun", "sbatch", "squeue", "sinfo", "scancel", "scontrol")
_ASK_S = 10.0
_HERE = socket.gethostname()


class MachineFacts(msgspec.Struct, frozen=True):
    """Facts of this machine and process.

    blas: NumPy's BLAS, with the core type that it detected.
    limits: environment variables that limit the threads of BLAS.
    cgroup_mb: memory limit of the cgroup; None without one.

    Units: disk speed in MB/s, None if the folder is not writable
    """

    python: tuple[int, int, int]
    executable: str
    cpu: str
    cpu_flags: frozenset[str]
    cpus: int
    usable_cpus: int
    blas: str
    versions: dict[str, str]
    has_llvmlite: bool
    limits: dict[str, str]
    cgroup_mb: int | None
    state_dir: str
    disk_mb_per_s: float | None


def machine_facts() -> MachineFacts:
    """Gather the facts of this machine; writes 64 MiB into the state folder to measure the disk."""
    variables = environment.inherited()
    return MachineFacts(
        sys.version_info[:3],
        sys.executable,
        *cpu_and_flags(),
        os.cpu_count() or 1,
        len(os.sched_getaffinity(0)),
        _blas(),
        installed_versions(),
        find_spec("llvmlite") is not None,
        {name: variables[name] for name in ONE_THREAD_VARIABLES if variables.get(name)},
        _cgroup_mb(),
        str(state_dir()),
        disk_speed(state_dir()),
    )


def cpu_and_flags() -> tuple[str, frozenset[str]]:
    """Model of this machine's CPU, and its flags."""
    name, flags = platform.processor() or platform.machine(), frozenset[str]()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = frozenset(value.split())
            break
    return name, flags


def _blas() -> str:
    """NumPy's BLAS with version, core type and threads; empty if unknown."""
    import numpy  # noqa: F401 - loads its BLAS
    from threadpoolctl import threadpool_info

    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    described = (
        f"{each['internal_api']} {each.get('version')}, core {each.get('architecture', '?')},"
        f" {each['num_threads']} thread{'s' * (each['num_threads'] != 1)}"
        for each in found
    )
    return "; ".join(described)


def _cgroup_mb() -> int | None:
    for name in CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            limit = int(Path(name).read_text())
            return limit >> 20 if limit < 1 << 60 else None
    return None


def disk_speed(folder: Path) -> float | None:
    """Measure the write speed of a folder's disk in MB/s; None if the folder is not writable."""
    block = os.urandom(1 << 20)
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    try:
        with TemporaryFile(dir=there) as file:
            begun_s = time.perf_counter()
            for _ in range(DISK_TEST_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            return DISK_TEST_BYTES / 1e6 / (time.perf_counter() - begun_s)
    except OSError:
        return None


def checks_of(found: MachineFacts) -> Iterator[CheckResult]:
    """Return the results of the checks of a machine."""
    version = ".".join(map(str, found.python))
    least = ".".join(map(str, LEAST_PYTHON))
    yield judge(
        "Python",
        _HERE,
        found.python[:2] >= LEAST_PYTHON,
        f"{version}, {found.executable}",
        f"make an environment with Python {least} or newer, and install csrun {VERSION} there",
    )
    yield from _of_cpu(found)
    yield _of_torch(found.versions.get("torch"))
    yield from _of_resources(found)


def _of_cpu(found: MachineFacts) -> Iterator[CheckResult]:
    missing = [flag for flag in REQUIRED_CPU_FLAGS if flag not in found.cpu_flags]
    cpu = f"{found.cpu}, without {' and '.join(missing)}" if missing else found.cpu
    remedy = "runs use NumPy kernels, which are slower: prefer a CPU with AVX2 and FMA"
    yield judge("CPU", _HERE, not missing, cpu, remedy)
    yield judge(
        "machine code",
        _HERE,
        found.has_llvmlite,
        "llvmlite is installed" if found.has_llvmlite else "llvmlite is not installed",
        "pip install llvmlite, or runs use the slower NumPy kernels",
    )
    remedy = "reinstall NumPy from PyPI, whose wheels have OpenBLAS"
    yield judge("NumPy's BLAS", _HERE, bool(found.blas), found.blas or "unknown", remedy)
    named = ", ".join(f"{name}={value}" for name, value in found.limits.items())
    usable = f"{found.usable_cpus} of {found.cpus} CPUs usable"
    yield judge(
        "threads",
        _HERE,
        not found.limits,
        f"{usable}; {named}" if named else usable,
        f"unset {' '.join(found.limits)}: csrun gives each task threads for its CPUs",
    )


def _of_torch(version: str | None) -> CheckResult:
    if version is None:
        return CheckResult(
            "torch", _HERE, Status.SKIPPED, "not installed", f"for PyTorch scripts: {TORCH.install}"
        )
    good = TORCH.supports(version)
    return judge("torch", _HERE, good, version, f"PyTorch scripts need it: {TORCH.install}")


def _of_resources(found: MachineFacts) -> Iterator[CheckResult]:
    limit = found.cgroup_mb
    yield judge(
        "memory limit",
        _HERE,
        limit is None or limit >= LEAST_CGROUP_MB,
        "none" if limit is None else f"{limit:,} MiB for this container",
        f"start the container with at least {LEAST_CGROUP_MB:,} MiB",
    )
    speed = found.disk_mb_per_s
    result = "cannot be written" if speed is None else f"{speed:,.0f} MB/s, {found.state_dir}"
    yield judge(
        "state folder",
        _HERE,
        speed is not None and speed >= LEAST_DISK_MB_PER_S,
        result,
        "set CSRUN_STATE_DIR to a folder on a local disk",
    )


def site_checks(site: Site) -> Iterator[CheckResult]:
    """Return the results of the checks of the site file, and of Slurm if the site uses it."""
    systems = ", ".join(system.name for system in site.systems)
    yield CheckResult("site", _HERE, Status.OK, f"{site.name}: {site.scheduler}, {systems}")
    if site.scheduler is Scheduler.LOCAL:
        has_slurm = shutil.which("srun") is not None
        result = "installed, the site does not use it" if has_slurm else "not installed"
        yield CheckResult("Slurm", _HERE, Status.SKIPPED, result)
        return
    missing = [name for name in _SLURM_COMMANDS if shutil.which(name) is None]
    if missing:
        remedy = "install Slurm's client, or run csrun on the cluster's log-in node"
        yield judge("Slurm", _HERE, False, f"no {', '.join(missing)} on PATH", remedy)
        return
    yield _slurm_answers()


def _slurm_answers() -> CheckResult:
    remedy = "check SLURM_CONF, and that slurmctld runs: scontrol ping"
    try:
        done = subprocess.run(
            ("sinfo", "--version"), capture_output=True, text=True, timeout=_ASK_S, check=False
        )
        ping = subprocess.run(
            ("scontrol", "ping"), capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return judge("Slurm", _HERE, False, f"does not answer: {error}", remedy)
    said = (ping.stdout or ping.stderr).strip().partition("\n")[0]
    return judge("Slurm", _HERE, ping.returncode == 0, f"{done.stdout.strip()}; {said}", remedy)


def site_problem(error: CsrunError) -> CheckResult:
    """Return the result for a site that cannot be loaded."""
    remedy = "correct the site file, or choose another with --site or CSRUN_SITE"
    return judge("site", _HERE, False, str(error), remedy)
