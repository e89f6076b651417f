"""What csrun refuses of PyTorch scripts, in jobs: the rows of docs/pytorch.md.

One job runs many scripts: it catches each error and goes on, with all of its tasks.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest
from support.fc_mnist import TWO_STREAMERS
from support.jobs import Sandbox

pytest.importorskip("torch")

from support.refusals import (
    PIPELINED,
    STREAMING,
    Refusal,
    fault_of,
    messages_of_the_page,
    refusals,
)
from support.run_refusals import SCRIPT

ONE_JOB = [each for each in refusals().values() if not each.ends_job]
OWN_JOBS = [each for each in refusals().values() if each.ends_job]
TWO_SYSTEMS = ("--site", "streaming-8", "--total-nodes", "3", "--tasks-per-node", "1")


def require_refused(
    place: Sandbox, way: str, each: Iterable[Refusal], layout: tuple[str, ...], *options: str
) -> None:
    """Run scripts in one job. Each has the message of its row, or the data say why not."""
    names = [refusal.name for refusal in each]
    done = place.run(*layout, way, str(SCRIPT), *names, *options)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" => ", 1) for line in done.stdout.splitlines() if " => " in line)
    assert list(found) == names
    page = messages_of_the_page()
    for refusal in each:
        if way in refusal.elsewhere:
            assert page[refusal.row] not in found[refusal.name]
        else:
            assert not fault_of(refusal, found[refusal.name])


@pytest.mark.slow
@pytest.mark.parametrize("way", [PIPELINED, STREAMING])
def test_scripts_are_refused_in_a_job(tmp_path: Path, way: str) -> None:
    """None starts a training that would end otherwise than in one process."""
    each = [refusal for refusal in ONE_JOB if refusal.systems == 1]
    require_refused(Sandbox(tmp_path), way, each, TWO_STREAMERS)


@pytest.mark.slow
def test_scripts_of_two_systems_are_refused_in_a_job(tmp_path: Path) -> None:
    each = [refusal for refusal in ONE_JOB if refusal.systems == 2]
    require_refused(Sandbox(tmp_path), STREAMING, each, TWO_SYSTEMS, "--num_csx=2")


@pytest.mark.slow
@pytest.mark.parametrize("way", [PIPELINED, STREAMING])
@pytest.mark.parametrize("refusal", OWN_JOBS, ids=lambda refusal: refusal.name)
def test_a_script_ends_its_job_with_one_line(tmp_path: Path, way: str, refusal: Refusal) -> None:
    """Whichever task finds it: each streamer has other batches."""
    done = Sandbox(tmp_path).run(*TWO_STREAMERS, way, str(SCRIPT), refusal.name)
    assert done.returncode == 2, done.stderr
    (said,) = (line for line in done.stderr.splitlines() if "csrun_wse: error:" in line)
    assert not fault_of(refusal, said.partition("csrun_wse: error: ")[2])
    assert "Traceback" not in done.stderr
