"""Machine code rebuilt by a job's wafer."""

import pytest
from support.fc_mnist import FcMnist

from csrun.executable import machine_code


@pytest.mark.skipif(not machine_code.is_supported(), reason="it is built with llvmlite")
def test_the_wafers_log_names_machine_code_that_is_damaged(place: FcMnist) -> None:
    place.configure(runconfig__max_steps=2)
    assert place.cpu("--mode", "train").returncode == 0
    (compiled,) = place.model_dir.glob("tfcs_*")
    (compiled / "kernels.a").write_bytes(b"")
    place.configure(runconfig__max_steps=4)
    done = place.wse("--mode", "train", interpreter="python")
    assert done.returncode == 0, done.stderr
    (log,) = place.jobs.glob("*/logs/wafer-cs2-01.log")
    line = f"INFO:csrun:model_dir/{compiled.name}/kernels.a: damaged, rebuilt for this process\n"
    assert log.read_text() == line
