"""Jobs in mixed precision: the bits of one process in each mode, and after a kill."""

import signal

import pytest
from safetensors.numpy import load_file
from support.fc_mnist import FcMnist
from support.jobs import gone, until

STEPS, EVERY = 60, 20
SCALED = {
    "optimizer__loss_scaling_factor": "dynamic",
    "optimizer__initial_loss_scale": 2.0**24,
    "optimizer__max_loss_scale": 2.0**24,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> FcMnist:
    place = FcMnist(tmp_path_factory.mktemp("mixed"))
    place.configure(
        runconfig__max_steps=STEPS,
        runconfig__save_checkpoints_steps=EVERY,
        runconfig__precision="mixed_float16",
        **SCALED,
    )
    return place


@pytest.fixture(scope="module")
def reference(place: FcMnist) -> bytes:
    """The last checkpoint of the CPU run, in which steps were skipped."""
    done = place.cpu("-o", "cpu")
    assert done.returncode == 0, done.stderr
    path = place.checkpoint(STEPS, "cpu")
    assert load_file(path)["loss_scale"] < 2.0**24
    return path.read_bytes()


def test_a_job_in_weight_streaming(place: FcMnist, reference: bytes) -> None:
    done = place.wse("-o", "streamed")
    assert done.returncode == 0, done.stderr
    assert place.checkpoint(STEPS, "streamed").read_bytes() == reference


def test_a_job_killed_and_started_again(place: FcMnist, reference: bytes) -> None:
    with place.start_wse("-o", "killed") as launcher:
        until(place.checkpoint(EVERY, "killed").exists)
        pids = list(place.processes(launcher.pid).values())
        launcher.send_signal(signal.SIGKILL)
        assert gone(pids[1:])
    done = place.wse("-o", "killed")
    assert done.returncode == 0, done.stderr
    assert place.checkpoint(STEPS, "killed").read_bytes() == reference
