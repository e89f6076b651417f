"""Tiny transformers with shipped params, trained on the sources of the standard library."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.programs import Machine
from support.reference_models import (
    MODELS,
    SMALL_MODELS,
    SmallModel,
    assert_same_step,
    batches,
    changed,
    one_thread,
    over,
    small_groups,
    traced,
    weights_of,
)
from support.trainings import beside, pair_nats, text_of

from csrun.base.mode import ExecutionMode
from csrun.compiler import compile_model
from csrun.estimator import CerebrasEstimator
from csrun.runtime.store.store_initialization import initialize

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the models")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FOLLOWED, BATCH = 100, 16  # steps beside PyTorch, of so many samples at most
WINDOWS = 500  # of the validation text
STEPS, MARGIN = 600, 0.05  # nats: the table has 2.48, the model 2.35


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread(torch):
        yield


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with train.bin and validation.bin, one token per byte."""
    folder = tmp_path_factory.mktemp("library")
    prepare = [sys.executable, str(MODELS / "gpt2" / "prepare_data.py"), "--out", str(folder)]
    subprocess.run(prepare, check=True, capture_output=True)
    return folder


@pytest.fixture(params=SMALL_MODELS)
def model(request: pytest.FixtureRequest) -> SmallModel:
    request.getfixturevalue(request.param)  # its folder on the import path
    return SMALL_MODELS[request.param]


def shipped(model: SmallModel, library: Path) -> Any:
    """Shipped params on these texts."""
    params = model.shipped(library / "train.bin")
    return over(params, library / "train.bin", library / "validation.bin")


def test_losses_and_the_following_step_are_pytorchs(tmp_path, model, library):
    """From equal weights and batches, each loss is within 2 %, several times what is found."""
    params = shipped(model, library)
    batch = min(BATCH, params.train_input.batch_size)
    params = changed(params, "train_input", batch_size=batch)
    options = small_groups(ExecutionMode.WEIGHT_STREAMING)
    machine = Machine(compile_model(traced(params), tmp_path, options).executable, {})
    initialize(machine.plan, machine.state, params.runconfig.seed)
    peer = model.peer(torch, weights_of(machine), params.model)
    *some, last = batches(params, FOLLOWED + 1, "float32")
    ours = [machine.train(flat)[0] for flat, _ in some]
    theirs = beside(peer, params, [nested for _, nested in some])
    np.testing.assert_allclose(ours, theirs, rtol=0.02, atol=0)
    assert np.mean(ours[-10:]) < 0.8 * ours[0]  # it learns
    peer = model.peer(torch, weights_of(machine), params.model)
    assert_same_step(machine, peer, last, 1e-5, 1e-4)


def test_the_tiny_gpt2_predicts_better_than_byte_pairs(own_folder, gpt2, library):
    """A model that attends to one byte only is no better than a table of pair frequencies."""
    from data import eval_input_fn, train_input_fn
    from model import model_fn

    params = changed(shipped(SMALL_MODELS["gpt2"], library), "eval_input", batch_size=20)
    config = msgspec.structs.replace(
        params.runconfig, save_checkpoints_steps=STEPS, log_steps=STEPS, threads=1
    )
    estimator = CerebrasEstimator(model_fn, own_folder / "model_dir", config=config, params=params)
    estimator.train(train_input_fn, max_steps=STEPS)
    loss = estimator.evaluate(eval_input_fn, WINDOWS // 20)["loss"]
    length = WINDOWS * params.model.sequence_length
    text = text_of(library / "validation.bin")[: length + 1]
    assert loss < pair_nats(text_of(library / "train.bin"), text) - MARGIN
