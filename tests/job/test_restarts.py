"""--max-restarts: a training whose tasks die is restarted automatically, with the same bits."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.fc_mnist import FOLDER, TWO_STREAMERS, FcMnist, losses
from support.testbed import IS_INSTALLED, new_testbed, site_file

STEPS = "400"
EVERY = 100  # more than the rings hold
FOUR = ("--total-nodes", "4", "--tasks-per-node", "1", "--cpus-per-task", "1")
ONE_TASK = ("--total-nodes", "1", "--tasks-per-node", "1")
WHERE = "        variant, sample = np.divmod("
#: Streamer 3 dies once each time that a checkpoint is there which it has not died at yet.
DYING = """
        import os, pathlib
        for step in ({steps}):
            written = pathlib.Path(f"model_dir/model-ckpt-{{step}}.json").exists()
            mark = pathlib.Path(f"died-{{step}}")
            if os.environ.get("SLURM_PROCID") == "3" and written and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), 9)
"""


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def there(request: pytest.FixtureRequest, place: FcMnist) -> Iterator[FcMnist]:
    """A place under each of the schedulers."""
    if request.param == "local":
        yield place
        return
    if not IS_INSTALLED:
        pytest.skip("slurmctld and munged are not installed: apt-get install slurm-wlm munge")
    cluster = new_testbed()
    try:
        cluster.start()
        site = site_file(place.path, "slurm")
        yield replace(place, site=site, variables=(("SLURM_CONF", str(cluster.conf)),))
    finally:
        cluster.stop()


def dying(place: FcMnist, *steps: int) -> str:
    """A run.py whose streamer of rank 3 is killed after each of these checkpoints."""
    text = (FOLDER / "data.py").read_text()
    assert WHERE in text
    place.configure(runconfig__save_checkpoints_steps=EVERY, runconfig__log_steps=1)
    death = DYING.format(steps="".join(f"{step}, " for step in steps))
    return place.copy(data=text.replace(WHERE, death + WHERE))


def test_a_killed_streamer_does_not_end_the_training(there: FcMnist) -> None:
    script = dying(there, 0, EVERY)
    layout = FOUR if there.site else TWO_STREAMERS
    command = ("python-ws", script, *there.own(("--max_steps", STEPS)))
    done = there.run("--max-restarts", "3", *layout, *command)
    assert done.returncode == 0, done.stderr
    node = "node4" if there.site else "node3"
    killed = f"rank 3 (streamer) on {node} was killed by signal 9 (SIGKILL)"
    assert done.stderr.count(f"csrun_wse: error: {killed}") == 2
    assert re.findall(r"csrun_wse: restart (\d) of 3", done.stderr) == ["1", "2"]
    assert there.cpu("--max_steps", STEPS, "--model_dir", "undisturbed").returncode == 0
    ours, its = there.checkpoint(int(STEPS)), there.checkpoint(int(STEPS), "undisturbed")
    assert ours.read_bytes() == its.read_bytes()
    assert losses(there.model_dir) == losses(Path(there.path / "undisturbed"))
    if there.site is None:
        record = there.record(1)
        assert (record["state"], record["restarts"]) == ("COMPLETED", [killed, killed])
        assert there.csctl("get", "job", "1").stdout.count(f"restarted after {killed}") == 2


def test_what_fails_at_the_start_each_time_is_tried_twice(place: FcMnist) -> None:
    place.script("raise ValueError('always')")
    done = place.run("--max-restarts", "9", *ONE_TASK, "python", "run.py")
    assert done.returncode == 1
    assert done.stderr.count("ValueError: always") == 2
    assert done.stderr.count("csrun_wse: restart") == 1


def test_what_cannot_start_again_ends_as_its_failure(place: FcMnist) -> None:
    """As on a full disk: the folder of the tasks' reports cannot be made again."""
    place.script(
        "import os, sys; from csrun.context import current\n"
        "ended = current().job_dir / 'ended'; ended.rmdir(); ended.touch(); sys.exit(7)"
    )
    done = place.run("--max-restarts", "2", *ONE_TASK, "python", "run.py")
    assert done.returncode == 7
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "no restart after" in line)
    assert line.startswith(f"csrun_wse: error: {place.jobs / '1' / 'ended'}: cannot be written: ")
    assert place.record(1)["exit_code"] == 7
