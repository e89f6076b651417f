"""Speeds of this machine: measured once, kept, measured again where the cache is damaged."""

from pathlib import Path

import pytest

from csrun.advice import machine_speeds
from csrun.advice.machine_speeds import FOLDER, speeds_here


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The measurements that were made, each with another speed."""
    made: list[str] = []

    def speed(name: str) -> float:
        made.append(name)
        return float(len(made))

    monkeypatch.setenv("CSRUN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(machine_speeds, "product_rate", lambda: speed("product"))
    monkeypatch.setattr(machine_speeds, "copy_rate", lambda: speed("copy"))
    monkeypatch.setattr(machine_speeds, "disk_speed", lambda folder: speed("disk"))
    return made


def test_they_are_measured_once(tmp_path: Path, measured: list[str]) -> None:
    first = speeds_here(tmp_path)
    assert (first[0].flops_per_s, first[0].copy_bytes_per_s, first[1]) == (1.0, 2.0, 3e6)
    assert speeds_here(tmp_path) == first
    assert measured == ["product", "copy", "disk"]


@pytest.mark.parametrize("damage", [b"", b"{}", b'{\n "crc32": "00000000", "flops_per_s": 1}\n'])
def test_a_damaged_cache_is_measured_again(
    tmp_path: Path, measured: list[str], damage: bytes
) -> None:
    speeds_here(tmp_path)
    (path,) = (tmp_path / "cache" / FOLDER).iterdir()
    path.write_bytes(damage)
    assert speeds_here(tmp_path)[0].flops_per_s == 4.0
    assert speeds_here(tmp_path)[0].flops_per_s == 4.0
    assert len(measured) == 6


def test_another_machine_or_version_has_its_own(
    tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds_here(tmp_path)
    monkeypatch.setattr(machine_speeds, "cpu_and_flags", lambda: ("another CPU", frozenset()))
    assert speeds_here(tmp_path)[0].flops_per_s == 4.0
    monkeypatch.setattr(machine_speeds, "installed_versions", lambda: {"csrun": "9.9"})
    assert speeds_here(tmp_path)[0].flops_per_s == 7.0


def test_without_a_cache_they_are_measured_each_time(
    tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CSRUN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert speeds_here(tmp_path)[0].flops_per_s == 1.0
    assert speeds_here(tmp_path)[0].flops_per_s == 4.0


def test_products_and_copies_have_speeds_of_a_computer() -> None:
    assert 1e8 < machine_speeds.product_rate() < 1e15
    assert 1e7 < machine_speeds.copy_rate() < 1e13
