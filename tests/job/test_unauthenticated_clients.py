"""Peers without the secret at every listener of a job, which is not affected."""

from contextlib import closing

import psutil
import pytest
from support.fc_mnist import FcMnist, losses
from support.jobs import STALL_S, until
from support.sites import separate_site
from support.unauthenticated_clients import UnauthenticatedClients

LAYOUT = ("--total-nodes", "3", "--tasks-per-node", "2", "--cpus-per-task", "1")
STEPS = 60
GROWTH_BYTES = 32 << 20  # of the chief, while the flood is there
COME_LATE = """
import os, time
from pathlib import Path
if os.environ["SLURM_PROCID"] == "3":
    while not Path("gate").exists():
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("count", "per_s"), [(600, 300), pytest.param(10_000, 1000, marks=pytest.mark.slow)]
)
def test_many_strangers_at_the_doors(place: FcMnist, count: int, per_s: int) -> None:
    """Most come while the last streamer is waited for, the others while the steps run."""
    place.configure(runconfig__max_steps=STEPS, runconfig__log_steps=1)
    separate_site(place.path)
    assert place.cpu("-o", "cpu").returncode == 0
    script = place.copy()
    run = place.path / script
    run.write_text(COME_LATE + run.read_text())
    layout = ("--site", "separate.yaml", *LAYOUT)
    with place.start(*layout, "python-ws", script, *place.own(("-o", "flood"))) as job:
        folder = place.jobs / "1" / "runs" / "0"
        until((folder / "endpoint").exists)
        chief = psutil.Process(place.processes(job.pid)["rank-00000"])
        before = chief.memory_info().rss
        with closing(UnauthenticatedClients(folder, per_s)) as strangers:
            strangers.open_connections(count * 9 // 10)
            assert chief.memory_info().rss < before + GROWTH_BYTES
            (place.path / "gate").touch()
            strangers.open_connections(count // 10)
            out, err = job.communicate(timeout=STALL_S)
    assert job.returncode == 0, err
    assert strangers.accepted > count // 2
    assert "Waiting for 2 streamer(s)" in out
    assert len(losses(place.path / "flood")) == STEPS
    assert losses(place.path / "flood") == losses(place.path / "cpu")
