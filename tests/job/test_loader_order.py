"""A job on an unseeded torch DataLoader trains as one process does, and resumes after a stop."""

import pytest
from support.fc_mnist import FcMnist

DATA = """
import numpy as np
import torch

from csrun.data import Dataset

SAMPLES = 256


def train_input_fn(params):
    images = torch.rand(SAMPLES, 28, 28, generator=torch.Generator().manual_seed(1))
    digits = torch.arange(SAMPLES, dtype=torch.int32) % 10
    samples = torch.utils.data.TensorDataset(images, digits)
    loader = torch.utils.data.DataLoader(samples, batch_size=32, shuffle=True)
    return Dataset.from_batches(loader).repeat()


eval_input_fn = train_input_fn
"""
STEPS, HALF = "20", "13"  # a pass has 8


@pytest.mark.slow
def test_any_number_of_streamers_sees_the_order_of_one_process(place: FcMnist) -> None:
    pytest.importorskip("torch")
    place.configure()
    script = place.copy(data=DATA)

    def run(*options: str, streamers: int = 0, model_dir: str) -> None:
        layout = ("--total-nodes=3", f"--tasks-per-node={streamers}", "--cpus-per-task=1")
        command = "csrun_wse" if streamers else "csrun_cpu"
        arguments = place.own((*options, "--model_dir", model_dir))
        done = place.run(
            *(layout if streamers else ()), "python-ws", script, *arguments, command=command
        )
        assert done.returncode == 0, done.stderr

    run("--max_steps", STEPS, model_dir="alone")
    run("--max_steps", HALF, streamers=3, model_dir="job")
    run("--max_steps", STEPS, streamers=2, model_dir="job")
    whole, resumed = (place.checkpoint(int(STEPS), name) for name in ("alone", "job"))
    assert whole.read_bytes() == resumed.read_bytes()
