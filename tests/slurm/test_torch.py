"""A PyTorch script on a cluster: each node imports torch before its tasks start."""

from pathlib import Path

import pytest
from support.fc_mnist import RUN, FcMnist
from support.jobs import Sandbox

pytest.importorskip("torch", reason="the script imports it")
pytestmark = [pytest.mark.slurm, pytest.mark.slow]

LAYOUT = ("--total-nodes", "3", "--tasks-per-node", "1", "--cpus-per-task", "1")
SAYS = """\
import os, pathlib, sys
where = os.environ["SLURM_PROCID"]
pathlib.Path("before-" + where).write_text(str("torch" in sys.modules))
import torch
"""


def test_torch_is_there_before_the_tasks_of_each_node(cluster_place: Sandbox) -> None:
    there = FcMnist(cluster_place.path, site=cluster_place.site, variables=cluster_place.variables)
    there.configure()
    script = there.copy(run=SAYS + Path(RUN).read_text())
    arguments = there.own(("--max_steps", "20"))
    done = there.run(*LAYOUT, "python-pt", script, *arguments)
    assert done.returncode == 0, done.stderr
    assert there.checkpoint(20).exists()
    found = {path.name: path.read_text() for path in there.path.glob("before-*")}
    assert found == {f"before-{rank}": "True" for rank in range(3)}
