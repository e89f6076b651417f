"""The same seed gives the same bits: on any number of streamers, on the CPU, after a kill."""

import signal
from pathlib import Path

import pytest
from support.fc_mnist import FcMnist, losses
from support.jobs import gone, until

STEPS = 120
EVERY = 20  # steps between two checkpoints

LAYOUTS = {
    1: ("--total-nodes", "3", "--tasks-per-node", "1"),
    2: ("--total-nodes", "4", "--tasks-per-node", "1"),
    5: ("--total-nodes", "3", "--tasks-per-node", "5"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> FcMnist:
    place = FcMnist(tmp_path_factory.mktemp("same_bits"))
    place.configure(
        runconfig__max_steps=STEPS,
        runconfig__log_steps=1,
        runconfig__save_checkpoints_steps=EVERY,
        runconfig__keep_checkpoint_max=STEPS,
    )
    return place


@pytest.fixture(scope="module")
def reference(place: FcMnist) -> Path:
    """What the CPU run leaves."""
    done = place.cpu("-o", "cpu")
    assert done.returncode == 0, done.stderr
    return place.path / "cpu"


def assert_same(model_dir: Path, reference: Path) -> None:
    expected = losses(reference)
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert losses(model_dir) == expected
    for step in range(0, STEPS + 1, EVERY):
        name = f"model-ckpt-{step}.safetensors"
        assert (model_dir / name).read_bytes() == (reference / name).read_bytes(), name


@pytest.mark.parametrize("streamers", LAYOUTS)
def test_any_number_of_streamers(place: FcMnist, reference: Path, streamers: int) -> None:
    name = f"streamers_{streamers}"
    done = place.wse("-o", name, layout=(*LAYOUTS[streamers], "--cpus-per-task", "1"))
    assert done.returncode == 0, done.stderr
    assert f"Waiting for {streamers} streamer(s)" in done.stdout
    assert_same(place.path / name, reference)


def test_a_run_killed_in_the_middle_and_started_again(place: FcMnist, reference: Path) -> None:
    with place.start_wse("-o", "killed") as launcher:
        until(place.checkpoint(2 * EVERY, "killed").exists)
        pids = list(place.processes(launcher.pid).values())
        launcher.send_signal(signal.SIGKILL)
        assert gone(pids[1:])
    assert not place.checkpoint(STEPS, "killed").exists()
    done = place.wse("-o", "killed")
    assert done.returncode == 0, done.stderr
    assert "Restoring parameters from killed/model-ckpt-" in done.stdout
    assert_same(place.path / "killed", reference)


def test_a_run_that_went_on_elsewhere(place: FcMnist, reference: Path) -> None:
    """Half of the steps on the CPU, half on the system."""
    assert place.cpu("-o", "halves", "--max_steps", str(STEPS // 2)).returncode == 0
    assert place.wse("-o", "halves").returncode == 0
    assert_same(place.path / "halves", reference)


def test_another_seed_is_another_run(place: FcMnist, reference: Path) -> None:
    place.configure(runconfig__seed=2, runconfig__max_steps=1, runconfig__log_steps=1)
    assert place.cpu("-o", "seed").returncode == 0
    assert losses(place.path / "seed")[1] != losses(reference)[1]
