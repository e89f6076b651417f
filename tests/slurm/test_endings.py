"""Termination of a training on a cluster: by scancel, which signals all processes, or Ctrl-C."""

import re
import signal
from pathlib import Path

import pytest
from support.fc_mnist import MANY_STEPS, FcMnist, losses
from support.jobs import STALL_S, Sandbox
from support.testbed import Testbed

pytestmark = pytest.mark.slurm

STREAMING = ("--total-nodes", "4", "--tasks-per-node", "1", "--cpus-per-task", "1")
PIPELINED = ("--total-nodes", "2", "--tasks-per-node", "1", "--cpus-per-task", "1")


@pytest.fixture
def there(cluster_place: Sandbox) -> FcMnist:
    """fc_mnist on the cluster."""
    return FcMnist(cluster_place.path, site=cluster_place.site, variables=cluster_place.variables)


@pytest.mark.parametrize(
    ("interpreter", "layout", "how"),
    [
        pytest.param(
            "python-ws", STREAMING, "scancel", marks=pytest.mark.slow, id="streaming-scancel"
        ),
        pytest.param("python", PIPELINED, "Ctrl-C", id="pipelined-Ctrl-C"),
    ],
)
def test_what_it_resumes_is_the_undisturbed_training(
    there: FcMnist, testbed: Testbed, interpreter: str, layout: tuple[str, ...], how: str
) -> None:
    there.configure(runconfig__save_checkpoints_steps=MANY_STEPS, runconfig__log_steps=1)
    start = there.start_wse("--max_steps", str(MANY_STEPS), layout=layout, interpreter=interpreter)
    with start as launcher:
        assert launcher.stdout is not None
        next(line for line in launcher.stdout if "global_step = 1," in line)
        if how == "scancel":
            testbed.call("scancel", "--user=root")
        else:
            launcher.send_signal(signal.SIGINT)
        out, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == (143 if how == "scancel" else 130), err
    (saved,) = re.findall(r"Checkpoint at global step (\d+) completed before the end", out)
    goal = int(saved) + 20
    resumed = there.wse("--max_steps", str(goal), layout=layout, interpreter=interpreter)
    assert resumed.returncode == 0, resumed.stderr
    assert f"Restoring parameters from model_dir/model-ckpt-{saved}.safetensors" in resumed.stdout
    whole = there.cpu("--max_steps", str(goal), "--model_dir", "undisturbed")
    assert whole.returncode == 0, whole.stderr
    ours, its = there.checkpoint(goal), there.checkpoint(goal, "undisturbed")
    assert ours.read_bytes() == its.read_bytes()
    assert losses(there.model_dir) == losses(Path(there.path / "undisturbed"))
