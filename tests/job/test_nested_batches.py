"""Batches of nested dicts reach the wafer from several streamers as from one process."""

import pytest
from support.fc_mnist import FOLDER, FcMnist

DATA = """
import numpy as np
import torch

from csrun.data import Dataset


class Halves(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, number):
        image = np.random.default_rng(number).random((28, 28), np.float32)
        inputs = {"top": image[:14], "bottom": image[14:]}
        return {"features": inputs, "labels": {"digit": number % 10, "weights": (1.0, number)}}


def train_input_fn(params):
    return Dataset.from_batches(torch.utils.data.DataLoader(Halves(), batch_size=32)).repeat()


eval_input_fn = train_input_fn
"""
STEPS = "12"


@pytest.mark.slow
def test_several_streamers_give_the_bits_of_one_process(place: FcMnist) -> None:
    pytest.importorskip("torch")
    place.configure()
    model = (FOLDER / "model.py").read_text()
    for old, new in (
        ("nn.flatten(features)", "_joined(features)"),
        ("labels)\n", 'labels["digit"])\n'),
        ("[labels,", '[labels["digit"],'),
    ):
        assert old in model
        model = model.replace(old, new)
    model += """

def _joined(features):
    parts = (nn.flatten(features[name]) for name in ("top", "bottom"))
    top, bottom = (nn.Dense(8, name=f"part_{k}")(part) for k, part in enumerate(parts))
    return top + bottom
"""
    script = place.copy(data=DATA, model=model)
    for name, streamers in (("alone", 0), ("streamed", 3)):
        layout = ("--total-nodes=3", f"--tasks-per-node={streamers}", "--cpus-per-task=1")
        arguments = place.own(("--max_steps", STEPS, "--model_dir", name))
        done = place.run(
            *(layout if streamers else ()),
            "python-ws",
            script,
            *arguments,
            command="csrun_wse" if streamers else "csrun_cpu",
        )
        assert done.returncode == 0, done.stderr
    checkpoints = [place.checkpoint(int(STEPS), name) for name in ("alone", "streamed")]
    assert len({path.read_bytes() for path in checkpoints}) == 1
    done = place.run("python", script, *place.own(("--compile_only",)), command="cs_input_analyzer")
    assert done.returncode == 0, done.stderr
    assert "Written: input_analysis.json" in done.stdout + done.stderr
