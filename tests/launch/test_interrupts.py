"""Ctrl-C at any moment of a training: exit code 130, one line, no partial files."""

import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.fc_mnist import MANY_STEPS, FcMnist
from support.jobs import STALL_S, gone, until
from support.testbed import site_file

from csrun.base.mode import BURST_S

MOMENTS = 4
LATEST_S = 2.0  # by then a job of fc_mnist has begun to train
SEED = 3


@pytest.fixture
def place(tmp_path: Path) -> FcMnist:
    return FcMnist(tmp_path)


def interrupted(place: FcMnist, delay_s: float, *arguments: str) -> tuple[int, str, str]:
    """Start a training, press Ctrl-C a while after the first line; return code, output, errors."""
    with place.start_wse("--max_steps", str(MANY_STEPS), *arguments) as launcher:
        assert launcher.stdout is not None
        first = launcher.stdout.readline()
        time.sleep(delay_s)
        pids = [p.pid for p in psutil.Process(launcher.pid).children(recursive=True)]
        launcher.send_signal(signal.SIGINT)
        out, err = launcher.communicate(timeout=STALL_S)
        assert gone(pids)
    return launcher.returncode, first + out, err


@pytest.mark.parametrize(
    "moment",
    [0, pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)],
)
def test_ctrl_c_at_any_moment(moment: int, place: FcMnist) -> None:
    delay_s = LATEST_S * (moment + random.Random(SEED + moment).random()) / MOMENTS
    code, out, err = interrupted(place, delay_s)
    assert code == 128 + signal.SIGINT
    assert "Traceback" not in out + err
    assert err.count("error") <= 1
    leftovers = [p.name for p in place.path.rglob(".*") if "state" not in p.parts]
    assert leftovers == []


@pytest.mark.slow
def test_ctrl_c_during_a_checkpoint_says_what_became_of_it(place: FcMnist) -> None:
    """A large model, whose write takes long compared with the signal's delivery."""
    place.configure(model__hidden_sizes=[3000, 3000], runconfig__save_checkpoints_steps=1)
    partial = "model_dir/.csrun-*.tmp"
    with place.start_wse("--max_steps", str(MANY_STEPS)) as launcher:
        assert launcher.stdout is not None
        first = next(line for line in launcher.stdout if "Saving checkpoint" in line)
        until(lambda: any(place.path.glob(partial)))
        launcher.send_signal(signal.SIGINT)
        out, _ = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 128 + signal.SIGINT
    lines = [line for line in (first + out).splitlines() if "heckpoint at global step" in line]
    saving, became = lines[-2:]
    step = int(saving.split()[-1])
    assert became.split(f"global step {step} ")[1].split()[0] in ("discarded", "completed")
    assert place.checkpoint(step).exists() == ("completed" in became)
    assert not any(place.path.glob(partial))


def test_a_second_ctrl_c_does_not_wait(place: FcMnist) -> None:
    """The grace period of the site is an hour."""
    place = replace(place, site=site_file(place.path, "local", grace_s=3600))
    script = "trap 'touch heard' TERM; touch up; while :; do sleep 0.1; done"
    layout = ("--total-nodes", "1", "--tasks-per-node", "1")
    with place.start(*layout, "sh", "-c", script) as launcher:
        place.wait_for("up")
        launcher.send_signal(signal.SIGINT)
        place.wait_for("heard")
        time.sleep(BURST_S)  # two at the same moment are one
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 128 + signal.SIGINT
