"""Checksum of a compile: changes that affect it, and changes that do not."""

import os
import shutil
import subprocess
import sys
from enum import Enum
from pathlib import Path

import msgspec
import pytest
from support.programs import SYSTEM, Network, options_of

import csrun
from csrun import nn
from csrun.base.mode import ExecutionMode
from csrun.compiler import (
    CompileOptions,
    compile_directory,
    compile_model,
)
from csrun.site import System

PRINT_CHECKSUM = """
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import CompileOptions, compile_directory
from csrun.site import load

wafer = load("local").systems[0]
options = CompileOptions(mode=ExecutionMode.PIPELINED, run_mode=RunMode.TRAIN, system=wafer)
print(compile_directory.checksum_of("ir", options))
"""
OPTIONS = options_of()
SMALLER = msgspec.structs.replace(SYSTEM, usable_cores=SYSTEM.usable_cores - 1)


def compiled(root: Path, network: Network | None = None, options: CompileOptions = OPTIONS):
    return compile_model((network or Network()).trace(), root, options)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    """Name of the compile directory without any change."""
    return compiled(tmp_path_factory.mktemp("unchanged")).executable.directory.name


@pytest.mark.parametrize(
    "change",
    [
        {"network": Network(learning_rate=0.06)},
        {"network": Network(momentum=0.8)},
        {"network": Network(optimizer=nn.Adam(0.05))},
        {"network": Network(batch=8)},
        {"network": Network(sizes=(12, 9, 7, 5))},
        {"network": Network(activation="gelu")},
        {"network": Network(dropout=0.5)},
        {"network": Network(precision="float64")},
        {"options": msgspec.structs.replace(OPTIONS, mode=ExecutionMode.WEIGHT_STREAMING)},
        {"options": msgspec.structs.replace(OPTIONS, group_bytes=1)},
        {"options": msgspec.structs.replace(OPTIONS, system=SMALLER)},
    ],
)
def test_what_changes_the_program_changes_the_checksum(tmp_path, unchanged, change):
    assert compiled(tmp_path, **change).executable.directory.name != unchanged


def another(value):
    """Return a different value of the same type."""
    if isinstance(value, Enum):
        return next(member for member in type(value) if member is not value)
    return f"{value}0" if isinstance(value, str) else (value or 0) + 1


@pytest.mark.parametrize("name", sorted({*CompileOptions.__struct_fields__} - {"system"}))
def test_every_option_counts(name):
    changed = msgspec.structs.replace(OPTIONS, **{name: another(getattr(OPTIONS, name))})
    assert compile_directory.checksum_of("ir", changed) != compile_directory.checksum_of(
        "ir", OPTIONS
    )


@pytest.mark.parametrize("name", System.__struct_fields__)
def test_what_the_system_is_counts_and_who_it_is_does_not(name):
    system = msgspec.structs.replace(SYSTEM, **{name: another(getattr(SYSTEM, name))})
    changed = msgspec.structs.replace(OPTIONS, system=system)
    same = compile_directory.checksum_of("ir", changed) == compile_directory.checksum_of(
        "ir", OPTIONS
    )
    assert same == (name in ("name", "address", "mode"))


@pytest.fixture
def package(tmp_path):
    """Copy of csrun to modify, with its bytecode, so that processes need not compile it again."""
    ignored = shutil.ignore_patterns("compile_report.txt")  # a link that a run leaves
    return Path(shutil.copytree(csrun.__path__[0], tmp_path / "csrun", ignore=ignored))


@pytest.mark.parametrize("room", compile_directory.ROOMS)
def test_a_byte_of_any_source_changes_the_digest(tmp_path, room):
    """Sources of the compiler, their imports, and the report's page.

    Each package is changed alone, since every digest reads all the others again.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    folder = shutil.copytree(Path(csrun.__path__[0], room), tmp_path / room, ignore=ignored)
    # a site's numbers count as options
    sources = [path for path in folder.rglob("*.*") if path.suffix != ".yaml"]
    assert len(sources) > 3
    found = {compile_directory.digest_of_sources(tmp_path)}
    for path in sources:
        before = path.read_bytes()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]) if before else b"#")
        found.add(compile_directory.digest_of_sources(tmp_path))
        path.write_bytes(before)
    assert len(found) == 1 + len(sources)


def test_a_source_that_comes_or_changes_its_name_changes_the_digest(package):
    digests = [compile_directory.digest_of_sources(package)]
    source = package / "compiler" / "plan" / "pipeline_schedule.py"
    source = source.rename(source.with_name("orders.py"))
    digests.append(compile_directory.digest_of_sources(package))
    (source.parent / "another.py").touch()
    digests.append(compile_directory.digest_of_sources(package))
    assert len({*digests}) == 3


def test_the_checksum_is_of_the_package_that_runs(package):
    def checksum():
        env = {**os.environ, "PYTHONPATH": str(package.parent)}
        run = [sys.executable, "-c", PRINT_CHECKSUM]
        return subprocess.run(run, env=env, cwd=package, capture_output=True, check=True).stdout

    first = checksum()
    assert checksum() == first
    with (package / "base" / "mode.py").open("a") as source:
        source.write("#")
    assert checksum() != first
