"""Equal bits for equal seeds: with any number of streamers, on the CPU, after a kill."""

import signal
from pathlib import Path

import pytest
from support.fc_mnist import FcMnist, losses
from support.jobs import gone, until
from support.sites import SHIPPED

STEPS = 120
EVERY = 20  # steps between two checkpoints

LAYOUTS = {
    1: ("--total-nodes", "3", "--tasks-per-node", "1"),
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


@pytest.mark.parametrize("streamers", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_any_number_of_streamers(place: FcMnist, reference: Path, streamers: int) -> None:
    name = f"streamers_{streamers}"
    done = place.wse("-o", name, layout=(*LAYOUTS[streamers], "--cpus-per-task", "1"))
    assert done.returncode == 0, done.stderr
    assert f"Waiting for {streamers} streamer(s)" in done.stdout
    assert_same(place.path / name, reference)


def test_a_run_killed_in_the_middle_and_started_again(place: FcMnist, reference: Path) -> None:
    """Of two streamers."""
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


@pytest.mark.slow
def test_a_run_that_went_on_elsewhere(place: FcMnist, reference: Path) -> None:
    """Half of the steps on the CPU, half on the system."""
    assert place.cpu("-o", "halves", "--max_steps", str(STEPS // 2)).returncode == 0
    assert place.wse("-o", "halves").returncode == 0
    assert_same(place.path / "halves", reference)


def test_another_seed_is_another_run(place: FcMnist, reference: Path) -> None:
    place.configure(runconfig__seed=2, runconfig__max_steps=1, runconfig__log_steps=1)
    assert place.cpu("-o", "seed").returncode == 0
    assert losses(place.path / "seed")[1] != losses(reference)[1]


SMALL = "usable_cores: 16"  # 768 KiB: the first kernel, 784 x 50, is more than an eighth


@pytest.mark.slow
def test_a_wafer_too_small_for_a_matrix_cuts_it_as_any_run_may(tmp_path: Path) -> None:
    """The CPU run that is told to cut has its bits; one that cuts nothing goes on from it."""
    site = tmp_path / "small.yaml"
    site.write_text(SHIPPED.read_text().replace("usable_cores: 745500", SMALL))
    place, short = FcMnist(tmp_path), {"runconfig__max_steps": 10, "runconfig__log_steps": 1}
    place.configure(**short)
    done = place.wse("-o", "cut", layout=("--site", str(site), *LAYOUTS[1], "--cpus-per-task", "1"))
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "compile_report.txt").read_text()
    assert "fc_0/kernel (156.8 kB) exceeds max_group_bytes" in report
    place.configure(**short, runconfig__max_group_bytes="96KiB")
    assert place.cpu("-o", "told").returncode == 0
    name = "model-ckpt-10.safetensors"
    assert losses(tmp_path / "cut") == losses(tmp_path / "told")
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "told" / name).read_bytes()
    place.configure(runconfig__max_steps=12, runconfig__log_steps=1)
    done = place.cpu("-o", "cut")
    assert "Restoring parameters from cut/model-ckpt-10" in done.stderr
    assert sorted(losses(tmp_path / "cut")) == list(range(1, 13))
