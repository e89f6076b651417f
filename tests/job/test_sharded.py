"""Data sharded among streamers by the user: their number is part of the run."""

import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.fc_mnist import FOLDER, FcMnist

DATA_TEXT = (FOLDER / "data.py").read_text()
CHAIN = "        Dataset.from_arrays(np.arange(variants * len(images)))\n"
IMPORT = "from csrun.data import Batch"
SHARDED = "shard(*shard_info()[::-1])"


@pytest.fixture
def script(place: FcMnist) -> str:
    """A run.py whose streamers have every N-th image each."""
    assert CHAIN in DATA_TEXT
    text = DATA_TEXT.replace(CHAIN, f"{CHAIN}        .{SHARDED}\n")
    return place.copy(data=text.replace(IMPORT, "from csrun.data import shard_info, Batch"))


def train(
    place: FcMnist, script: str, streamers: int, steps: int, model_dir: str = "model_dir"
) -> "subprocess.CompletedProcess[str]":
    layout = ("--total-nodes=3", f"--tasks-per-node={streamers}", "--cpus-per-task=1")
    options = ("--max_steps", str(steps), "--model_dir", model_dir)
    return place.run(*layout, "python-ws", script, *place.own(options))


def test_a_resumed_run_has_the_same_streamers_and_goes_on_exactly(
    place: FcMnist, script: str
) -> None:
    """7 steps of 3 streamers: they have had 3, 2 and 2 batches; the next one is the second's.

    One process is another number of streamers, too.
    """
    place.configure()
    assert train(place, script, 3, 20, "whole").returncode == 0
    assert train(place, script, 3, 7).returncode == 0
    done = train(place, script, 2, 20)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    said = (
        r"model_dir/model-ckpt-7\.safetensors: its data was sharded by user among 3 "
        r"streamers, now it is sharded by user among 2 streamers: run it with "
        r"--total-nodes 3 --tasks-per-node 3, or shard by batch"
    )
    assert re.search(said, line), line
    done = place.run("python", script, *place.own(()), command="csrun_cpu")
    assert done.returncode == 2
    assert "run it with csrun_wse and 3 streamers" in done.stderr
    done = train(place, script, 3, 20)
    assert done.returncode == 0, done.stderr
    assert place.checkpoint(20).read_bytes() == place.checkpoint(20, "whole").read_bytes()


@pytest.mark.slow
def test_sharded_by_batch_any_number_goes_on(
    place: FcMnist, trained_once: Callable[[str], Any]
) -> None:
    """The shipped input function: what is trained does not depend on who streams it."""
    whole = trained_once("wse").place.checkpoint(20).read_bytes()  # by two
    for streamers, steps in ((3, 7), (1, 20)):
        assert train(place, f"{FOLDER}/run.py", streamers, steps).returncode == 0
    assert place.checkpoint(20).read_bytes() == whole


@pytest.mark.slow
def test_another_way_of_sharding_is_another_run(trained_on_system: FcMnist, script: str) -> None:
    done = train(trained_on_system, script, 2, 30)
    assert done.returncode == 2
    assert "change input_fn back to shard by batch" in done.stderr


FEW = "        Dataset.from_arrays(np.arange(500))\n        .shard(*shard_info()[::-1])\n"


def test_the_streamer_whose_own_data_ends_is_named(place: FcMnist) -> None:
    """500 images, 250 a streamer: one whole batch of 128 each."""
    text = DATA_TEXT.replace(CHAIN, FEW).replace("        .repeat()\n", "")
    script = place.copy(data=text.replace(IMPORT, "from csrun.data import shard_info, Batch"))
    done = train(place, script, 2, 20)
    assert done.returncode == 0, done.stderr
    assert "The dataset of streamer 2 ended at step 2 of 20: call .repeat()" in done.stdout


@pytest.mark.slow
def test_an_evaluation_takes_all_data_of_streamers_that_have_unequally_much(
    trained_on_system: FcMnist,
) -> None:
    """384 images in batches of 128: streamer 2 has two of them, streamer 3 one."""
    place = trained_on_system
    evaluated = "    batches = Dataset.from_arrays(images, labels).batch(options.batch_size)\n"
    assert evaluated in DATA_TEXT
    few = evaluated.replace("images, labels", "images[:384], labels[:384]")
    whole = DATA_TEXT.replace(evaluated, few)
    apart = whole.replace(few, few.replace("size)\n", f"size).{SHARDED}\n"))
    place.configure(eval_input__batch_size=128)
    results = []
    for text in (whole, apart):
        text = text.replace(IMPORT, "from csrun.data import shard_info, Batch")
        shutil.rmtree(place.path / "copy", ignore_errors=True)
        script = place.copy(data=text)
        layout = ("--total-nodes=3", "--tasks-per-node=2", "--cpus-per-task=1")
        done = place.run(*layout, "python-ws", script, *place.own(("--mode", "eval")))
        assert done.returncode == 0, done.stderr
        found = re.search(r"accuracy = ([\d.]+).*loss = ([\d.]+)", done.stdout)
        assert found
        results.append([float(value) for value in found.groups()])
    np.testing.assert_allclose(*results, rtol=1e-5)
