"""A PyTorch loop of which csrun records each step, compared with the same loop in plain PyTorch.

What is measured is the processor time of a step, all of it in one thread of one process: the user's
Python, the recording, the program and the update. Wall time would measure the machine's other load.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pytorch import BENCH, MODELS, PLAIN, started
from result import Result, interleaved

ROUNDS = 3
SECONDS = 4.0  # of each run's steps
#: Model, what its params are besides the file's, steps between two looks at the loss, and how much
#: of a plain step's time a recorded one may take.
WORKLOADS: Mapping[str, tuple[str, Mapping[str, Any], int, float | None]] = {
    "recorded fc_mnist": ("fc_mnist", {}, 20, None),
    "recorded GPT, 12 layers of 24": (
        "gpt2",
        {
            "hidden_size": 24,
            "num_hidden_layers": 12,
            "num_heads": 2,
            "sequence_length": 16,
        },
        20,
        None,
    ),
    "recorded GPT d 384": (
        "gpt2",
        {
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_heads": 6,
            "sequence_length": 256,
        },
        2,
        2.0,
    ),
}
RECORDED, PLAIN_SIDE = "recorded, one process", "PyTorch, one thread"


def bench(name: str, folder: Path) -> None:
    """Measure both sides of a workload in turn, and print their medians."""
    model, own, every, wanted = WORKLOADS[name]
    params = yaml.safe_load((MODELS / model / "configs" / "params.yaml").read_text())
    params["model"].update(own)
    if "file" in params["train_input"]:
        params["train_input"]["file"] = str(folder / Path(params["train_input"]["file"]).name)
    path = folder / f"{model}.yaml"
    path.write_text(yaml.safe_dump(params))
    words = (model, path, "batches", str(SECONDS), str(every))
    one_thread = {"OMP_NUM_THREADS": "1"}
    sides = {
        RECORDED: partial(step_ms, (*words, "recorded"), one_thread),
        PLAIN_SIDE: partial(step_ms, words, {**one_thread, "PYTHONPATH": str(PLAIN)}),
    }
    medians = interleaved(sides, ROUNDS)
    for side, value in medians.items():
        ratio = value / medians[PLAIN_SIDE]
        bound = wanted if side == RECORDED else None
        Result(
            "recorded", name, side, "ms of CPU a step", value, PLAIN_SIDE, ratio, ROUNDS,
            at_most=bound,
        ).print()  # fmt: skip


def step_ms(words: tuple[object, ...], variables: Mapping[str, str]) -> float:
    """The processor time of a step in milliseconds, as the loop tells it."""
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        said = started((sys.executable, BENCH / "pytorch_loop.py", *words), folder, variables)
    found = re.search(r"^us/whole (\S+)$", said, re.M)
    assert found is not None, said
    return float(found[1]) / 1000


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # a large step would use more threads
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as made:
        text = (sys.executable, MODELS / "gpt2" / "prepare_data.py", "--out", made)
        started(text, made, {})
        for each in WORKLOADS:
            if all(word in each for word in sys.argv[1:]):
                bench(each, Path(made))
