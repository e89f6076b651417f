"""A killed or interrupted compile, and the compile after it."""

import random
import signal
import time
from itertools import cycle

import pytest
from support.fc_mnist import FcMnist

from csrun.executable import load

DEEP = [8] * 100  # layers: start and compile take about as long
LONGEST_S = 2.0
HOW = (signal.SIGKILL, signal.SIGINT)
MOMENTS = [round(random.Random(number).uniform(0.3, LONGEST_S), 2) for number in range(6)]


@pytest.mark.parametrize(
    ("after_s", "how"),
    [(MOMENTS[0], HOW[0]), pytest.param(MOMENTS[1], HOW[1], marks=pytest.mark.slow)],
)
def test_interrupted(place: FcMnist, how: signal.Signals, after_s: float) -> None:
    assert_next_one_is_whole(place, how, after_s)


@pytest.mark.slow
@pytest.mark.parametrize(("after_s", "how"), list(zip(MOMENTS[2:], cycle(HOW), strict=False)))
def test_interrupted_at_many_moments(place: FcMnist, how: signal.Signals, after_s: float) -> None:
    assert_next_one_is_whole(place, how, after_s)


def assert_next_one_is_whole(place: FcMnist, how: signal.Signals, after_s: float) -> None:
    place.configure(model__hidden_sizes=DEEP)
    with place.start_cpu("--compile_only") as process:
        time.sleep(after_s)
        process.send_signal(how)
        process.communicate()
    left = list(place.model_dir.glob("tfcs_*"))
    done = place.cpu("--compile_only")
    assert done.returncode == 0, done.stderr
    assert ("Cached compilation found" in done.stdout + done.stderr) == bool(left)
    (target,) = place.model_dir.glob("*tfcs_*")
    assert (place.path / "compile_report.txt").resolve() == target / "compile_report.txt"
    assert len(load(target).plan.layers) == len(DEEP) + 1
