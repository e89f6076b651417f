"""Places where the same job runs under either scheduler; Slurm's is a cluster on loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import Sandbox
from support.testbed import IS_INSTALLED, Testbed, new_testbed, site_file

SCHEDULERS = ["local", pytest.param("slurm", marks=pytest.mark.slurm)]


@pytest.fixture(scope="session")
def testbed() -> Iterator[Testbed]:
    """Cluster for all tests of a session."""
    if not IS_INSTALLED:
        pytest.skip("slurmctld and munged are not installed: apt-get install slurm-wlm munge")
    cluster = new_testbed()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster_place(tmp_path: Path, testbed: Testbed) -> Iterator[Sandbox]:
    """Folder on the cluster, whose jobs are ended after the test."""
    yield Sandbox(
        tmp_path,
        site=site_file(tmp_path, "slurm"),
        variables=(("SLURM_CONF", str(testbed.conf)),),
    )
    testbed.end_jobs()


@pytest.fixture(params=SCHEDULERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    """Folder under each of the schedulers."""
    if request.param == "slurm":
        found: Sandbox = request.getfixturevalue("cluster_place")
        return found
    return Sandbox(tmp_path, site=site_file(tmp_path, "local"))
