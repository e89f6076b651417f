"""Schedulers behind a common interface, without checks for which one it is."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import csrun
from csrun.launch import BACKENDS, backend_of
from csrun.launch.backend import Backend
from csrun.site import Scheduler, load

ROOT = Path(csrun.__file__).parent
VERBS = {"plan", "run", "preview", "jobs", "records", "folders", "folder", "check", "nodes",
         "systems", "cancel", "label", "logs"}  # fmt: skip


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_scheduler_has_a_backend_of_all_verbs() -> None:
    assert set(BACKENDS) == set(Scheduler)
    for path in BACKENDS.values():
        backend = importlib.import_module(path).BACKEND
        own = {name for name in vars(backend) if not name.startswith("_")}
        assert own >= VERBS == {name for name in vars(Backend) if not name.startswith("_")}


def test_a_site_gets_the_backend_of_its_scheduler() -> None:
    assert type(backend_of(load("local"))).__module__ == BACKENDS[Scheduler.LOCAL]


def test_the_siblings_know_nothing_of_each_other() -> None:
    slurm = [name for path in (ROOT / "launch/slurm").glob("*.py") for name in imported(path)]
    assert not [name for name in slurm if name.startswith("csrun.launch.local")]
    local = [*imported(ROOT / "launch/local.py")]
    for room in ("process", "life"):
        local += [name for path in (ROOT / "launch" / room).glob("*.py") for name in imported(path)]
    assert not [name for name in local if name.startswith("csrun.launch.slurm")]


@pytest.mark.parametrize("room", ["launch", "jobs", "system", "cli"])
def test_no_branch_asks_which_scheduler_it_is(room: str) -> None:
    """Except in the table of schedulers, in messages to users, and in queries of hardware."""
    allowed = {
        "launch/__init__.py",
        "launch/local.py",
        "launch/preflight/installation.py",
        "launch/site_numbers.py",
        "launch/slurm/backend.py",
        "launch/slurm/sinfo.py",
    }
    asking = {
        str(path.relative_to(ROOT))
        for path in (ROOT / room).rglob("*.py")
        if "Scheduler." in path.read_text() or ".scheduler" in path.read_text()
    }
    assert asking - allowed <= {"cli/input_analysis.py"}
