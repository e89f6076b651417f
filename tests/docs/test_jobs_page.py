"""docs/jobs.md: its csctl commands run as printed, on jobs like those it shows."""

import shlex
from pathlib import Path

import pytest
from support.fc_mnist import MANY_STEPS, FcMnist
from support.jobs import until
from support.pages import CHECKOUT, blocks, section

PAGE = CHECKOUT / "docs" / "jobs.md"
ALL_NODES = "16"
CANCELLING = "job 3: cancelling; a training saves a checkpoint before it ends\n"


@pytest.mark.slow
def test_the_commands_of_csctl_run_as_they_are_printed(tmp_path: Path) -> None:
    place, said = FcMnist(tmp_path), {}
    place.configure(runconfig__max_steps=MANY_STEPS)
    for _ in range(2):
        assert place.run("--total-nodes", "1", "true").returncode == 0
    with place.start_wse() as training:
        place.wait_for_state(3, "RUNNING")
        with place.start("--total-nodes", ALL_NODES, "true") as waiting:
            place.wait_for_state(4, "PENDING")
            until(lambda: "global_step" in place.csctl("logs", "3").stdout)  # it has what to save
            lines = next(blocks(section(PAGE, "csctl"))).splitlines()
            shown = [line.removeprefix("$ csctl ") for line in lines if line.startswith("$ ")]
            follower = place.start("logs", "3", "--follow", command="csctl")
            for words in shown:
                if not words.endswith("--follow"):
                    done = place.csctl(*shlex.split(words))
                    assert done.returncode == 0, words
                    assert done.stderr in ("", CANCELLING), words  # said where it takes long
                    said[words] = done.stdout
            followed, _ = follower.communicate(timeout=60)
            waiting.communicate(timeout=60)
        training.communicate(timeout=60)
    assert len(shown) == 7
    header, *rows = said["get jobs"].splitlines()
    assert header.split() == lines[1].split()
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4"]
    assert "RUNNING" in rows[2]
    assert "waits for 16 of the 16 nodes: job 3 holds 3" in rows[3]
    assert said["cancel 3"].strip() == lines[-1] == "job 3: CANCELLED, exit code 143"
    assert "Saving checkpoint" in followed
    assert (follower.returncode, training.returncode, waiting.returncode) == (0, 143, 0)
