"""Checks of csrun doctor, as functions of facts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from csrun.launch.preflight import installation
from csrun.launch.preflight.checks import CheckResult, Status
from csrun.launch.preflight.installation import MachineFacts, checks_of, machine_facts
from csrun.site import load

GOOD = MachineFacts(
    (3, 11, 7), "/venv/bin/python", "AMD EPYC", frozenset({"avx2", "fma"}), 8, 4,
    "openblas 0.3.30, core Zen, 4 threads", {"numpy": "2.4.0", "torch": "2.13.0"}, True, {},
    None, "/home/ada/.local/state/csrun", 900.0,
)  # fmt: skip


def failed(results: Sequence[CheckResult]) -> dict[str, CheckResult]:
    return {each.check: each for each in results if each.has_failed}


def test_a_good_machine_has_nothing_to_do() -> None:
    found = list(checks_of(GOOD))
    assert [each.remedy for each in found] == [""] * len(found)
    threads = next(each for each in found if each.check == "threads")
    assert threads.result == "4 of 8 CPUs usable"


@pytest.mark.parametrize(
    ("check", "changes", "remedy"),
    [
        ("Python", {"python": (3, 10, 2)}, "Python 3.11 or newer"),
        ("CPU", {"cpu_flags": frozenset({"avx2"})}, "prefer a CPU with AVX2 and FMA"),
        ("machine code", {"has_llvmlite": False}, "pip install llvmlite"),
        ("NumPy's BLAS", {"blas": ""}, "reinstall NumPy"),
        ("threads", {"limits": {"OMP_NUM_THREADS": "1"}}, "unset OMP_NUM_THREADS"),
        ("torch", {"versions": {"torch": "2.1.0"}}, "pip install 'torch==2.13.*'"),
        ("memory limit", {"cgroup_mb": 512}, "at least 2,048 MiB"),
        ("state folder", {"disk_mb_per_s": 20.0}, "CSRUN_STATE_DIR"),
        ("state folder", {"disk_mb_per_s": None}, "CSRUN_STATE_DIR"),
    ],
)
def test_a_failed_check_says_what_to_do(check: str, changes: dict[str, Any], remedy: str) -> None:
    found = failed(list(checks_of(msgspec.structs.replace(GOOD, **changes))))
    assert list(found) == [check]
    assert remedy in found[check].remedy


def test_torch_is_needed_for_its_scripts_only() -> None:
    found = {each.check: each for each in checks_of(msgspec.structs.replace(GOOD, versions={}))}
    assert found["torch"].status is Status.SKIPPED


@pytest.mark.usefixtures("state")
def test_facts_of_this_machine() -> None:
    found = machine_facts()
    assert found.python[:2] >= (3, 11)
    assert "core" in found.blas
    assert found.usable_cpus >= 1
    assert found.disk_mb_per_s is not None
    assert found.disk_mb_per_s > 0


def test_a_folder_that_cannot_be_written_has_no_speed() -> None:
    assert installation.disk_speed(Path("/proc/no")) is None


def test_a_site_without_slurm() -> None:
    site, slurm = installation.site_checks(load("local"))
    assert (site.status, slurm.status) == (Status.OK, Status.SKIPPED)
    assert "cs2-01" in site.result


def test_slurm_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.shutil, "which", lambda name: None)
    site = msgspec.structs.replace(load("local"), scheduler="slurm")
    _, slurm = installation.site_checks(site)
    assert slurm.has_failed
    assert "no srun, sbatch" in slurm.result
