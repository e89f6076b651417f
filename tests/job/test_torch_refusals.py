"""What csrun refuses of PyTorch scripts, in jobs: the messages of docs/pytorch.md.

The script catches each error and goes on, with all of its tasks.
"""

from pathlib import Path

import pytest
from support.fc_mnist import TWO_STREAMERS
from support.jobs import Sandbox

pytest.importorskip("torch")

from support.refusals import cases, messages_of_the_page

SCRIPT = Path(__file__).parents[1] / "support" / "refusals.py"


@pytest.mark.slow
def test_what_is_refused_is_refused_in_jobs(tmp_path):
    """None starts a training that would end otherwise than in one process."""
    done = Sandbox(tmp_path).run(*TWO_STREAMERS, "python-ws", str(SCRIPT))
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" => ", 1) for line in done.stdout.splitlines() if " => " in line)
    page = messages_of_the_page()
    names = [what for what, _ in cases()]
    assert list(found) == names
    assert [what for what in names if page[what] not in found[what]] == []
