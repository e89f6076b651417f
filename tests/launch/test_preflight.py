"""Checks of a site, on handmade facts and on this machine's."""

from pathlib import Path

import msgspec
import pytest

from csrun.launch.preflight import checks
from csrun.launch.preflight.checks import CheckResult
from csrun.launch.preflight.facts import UNLIMITED, NodeFacts, facts_here
from csrun.launch.slurm import cluster_checks, sinfo
from csrun.site import load

SITE = msgspec.structs.replace(load("local"), gres="cs:{system}:1", grace_s=30.0)
NAMES = ("node1", "node2")
FOLDER = Path("/scratch/jobs")
GOOD = NodeFacts("node1", {"csrun": "1", "numpy": "2.4"}, 9000, 9000, UNLIMITED, 9000,
                 read_from=NAMES, clock_ahead_s={"node1": 0.0, "node2": -0.2})  # fmt: skip


def failed(*changes: tuple[str, object]) -> list[tuple[str, str]]:
    """Names and remedies of failed checks of a good node with these changes."""
    facts = msgspec.structs.replace(GOOD, **dict(changes))
    found = [*checks.of_node(facts, FOLDER), *checks.between(facts, NAMES)]
    return [(each.check, each.result) for each in found if each.has_failed]


def test_a_good_node_passes() -> None:
    assert failed() == []


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("folder_problem", "/x: Read-only file system",
     ("jobs_dir writable", "/x: Read-only file system")),
    ("read_from", ("node1",), ("jobs_dir shared", "cannot read files of node2")),
    ("clock_ahead_s", {"node1": 0.0, "node2": -1.5}, ("clock", "node2 is -1.500 s")),
    ("unreached", {"node2": "timed out"}, ("network", "node2: timed out")),
    ("memory_free_mb", 100, ("memory", "100 MiB free")),
    ("disk_free_mb", 100, ("disk of jobs_dir", "100 MiB free")),
    ("open_files", 1024, ("open files", "1,024")),
    ("processes", 512, ("processes", "512")),
])  # fmt: skip
def test_each_check_fails_by_itself(key: str, value: object, expected: tuple[str, str]) -> None:
    assert failed((key, value)) == [expected]


def test_versions_that_differ_are_listed_with_their_nodes() -> None:
    other = msgspec.structs.replace(GOOD, node="node2", versions={"csrun": "1"})
    csrun, numpy = checks.versions([GOOD, other])
    assert (csrun.has_failed, csrun.result) == (False, "1")
    assert (numpy.has_failed, numpy.result) == (True, "2.4 on node1; none on node2")


def cluster(text: str) -> list[CheckResult]:
    nodes = sinfo.parse(text)
    return [*cluster_checks.states(nodes, SITE), *cluster_checks.gres(nodes, SITE)]


def test_slurm_conf_against_the_site_file() -> None:
    cpus = SITE.nodes.cpus
    lines = [f"node{n}|{cpus}|8000|idle|(null)|all*" for n in range(2, SITE.nodes.count + 1)]
    good = "\n".join([f"node1|{cpus}|8000|idle|cs:cs2-01:1,cs:cs2-02:1|all*", *lines])
    assert not [each for each in cluster(good) if each.has_failed]
    bad = f"node1|{cpus - 1}|8000|drained|cs:cs2-01:1|all*"
    found = {each.check for each in cluster(bad) if each.has_failed}
    assert found == {"state", "CPUs", "nodes", "gres of cs2-02"}


@pytest.mark.parametrize(("kill_wait_s", "is_bad"), [(29, True), (30, False)])
def test_kill_wait_against_the_grace(kill_wait_s: int, is_bad: bool) -> None:
    assert cluster_checks.kill_wait(kill_wait_s, SITE).has_failed is is_bad


def test_facts_of_this_machine(tmp_path: Path) -> None:
    facts = facts_here("here", tmp_path / "jobs")
    assert facts.folder_problem == ""
    assert not [*(tmp_path / "jobs").iterdir()]
    (tmp_path / "file").touch()
    assert "Not a directory" in facts_here("here", tmp_path / "file" / "jobs").folder_problem
