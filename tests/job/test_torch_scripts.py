"""A script that imports torch: its tasks share one import, and the wafer has none."""

import os
import signal
from pathlib import Path

import pytest
from support.fc_mnist import MANY_STEPS, RUN, TWO_STREAMERS, FcMnist
from support.jobs import STALL_S

pytest.importorskip("torch")

SAYS = "import sys\nprint('before:', 'torch' in sys.modules)\nimport torch\n"


@pytest.mark.parametrize(
    "interpreter", ["python-pt", pytest.param("python-ws", marks=pytest.mark.slow)]
)
def test_torch_is_there_before_the_tasks_and_not_in_the_wafer(
    interpreter: str, place: FcMnist
) -> None:
    place.configure()
    script = place.copy(run=SAYS + Path(RUN).read_text())
    arguments = place.own(("--max_steps", str(MANY_STEPS)))
    with place.start(*TWO_STREAMERS, interpreter, script, *arguments) as launcher:
        assert launcher.stdout is not None
        lines = []
        for line in launcher.stdout:
            lines.append(line)
            if "global_step = " in line:
                break
        processes = place.processes(launcher.pid)
        holding = {name for name, pid in processes.items() if "libtorch" in mapped(pid)}
        launcher.send_signal(signal.SIGINT)
        _, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 128 + signal.SIGINT, err
    assert lines.count("before: True\n") == 1
    wafers = {name for name in processes if name.startswith("wafer-")}
    assert len(wafers) == 1
    assert holding - {"forkserver"} == {name for name in processes if name.startswith("rank-")}


@pytest.mark.slow
def test_a_wafer_of_its_own_that_fails_is_reported_as_any_task(place: FcMnist) -> None:
    place.configure()
    script = place.copy(run="import torch\n" + Path(RUN).read_text())
    arguments = place.own(("--max_steps", str(MANY_STEPS)))
    with place.start(*TWO_STREAMERS, "python", script, *arguments) as launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            if "global_step = " in line:
                break
        processes = place.processes(launcher.pid)
        (wafer,) = (pid for name, pid in processes.items() if name.startswith("wafer-"))
        os.kill(wafer, signal.SIGKILL)
        _, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 128 + signal.SIGKILL
    assert "wafer" in err


def mapped(pid: int) -> str:
    """The files that a process has in its memory."""
    return Path(f"/proc/{pid}/maps").read_text()
