"""Steps computed by several threads: the same bits with any number, also after a kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fc_mnist import FcMnist, losses
from support.jobs import gone, until

pytest.importorskip("llvmlite", reason="threads share machine code")

STEPS, EVERY = 12, 4
SIZES = [1024, 1024]  # 2.9 GFLOP a step of 256 samples: more than what one thread computes


OPTIONS = {
    "train_input__batch_size": 256,
    "model__hidden_sizes": SIZES,
    "runconfig__max_steps": STEPS,
    "runconfig__log_steps": 1,
    "runconfig__save_checkpoints_steps": EVERY,
    "runconfig__kernels": "llvm",
}


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> FcMnist:
    place = FcMnist(tmp_path_factory.mktemp("threads"))
    place.configure(**OPTIONS)
    return place


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one thread leaves, on the CPU."""
    place = FcMnist(tmp_path_factory.mktemp("one_thread"))
    place.configure(**OPTIONS, runconfig__threads=1)
    done = place.cpu("-o", "one")
    assert done.returncode == 0, done.stderr
    return place.path / "one"


def assert_same(model_dir: Path, reference: Path) -> None:
    assert losses(model_dir) == losses(reference)
    name = f"model-ckpt-{STEPS}.safetensors"
    assert (model_dir / name).read_bytes() == (reference / name).read_bytes()


def test_all_cpus_on_the_cpu_and_in_a_job(place: FcMnist, reference: Path) -> None:
    assert place.cpu("-o", "cpu").returncode == 0
    assert_same(place.path / "cpu", reference)
    done = place.wse("-o", "job")
    assert done.returncode == 0, done.stderr
    assert_same(place.path / "job", reference)


@pytest.fixture
def busy_cpu() -> Iterator[None]:
    """Another program on one of the CPUs."""
    own = max(os.sched_getaffinity(0))
    busy = f"import os\nos.sched_setaffinity(0, {{{own}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy]) as program:
        yield
        program.kill()


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM], ids=str)
def test_an_ended_run_goes_on_with_another_number_of_threads(
    place: FcMnist, reference: Path, busy_cpu: None, signum: signal.Signals
) -> None:
    with place.start_wse("-o", "ended") as launcher:
        until(place.checkpoint(EVERY, "ended").exists)
        pids = list(place.processes(launcher.pid).values())
        launcher.send_signal(signum)
        assert gone(pids[1:])
    place.configure(**OPTIONS, runconfig__threads=1)
    done = place.wse("-o", "ended")
    assert done.returncode == 0, done.stderr
    assert_same(place.path / "ended", reference)
