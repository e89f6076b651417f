"""Dropout of the tiny transformers: masks, and their independence of minibatches."""

from dataclasses import replace
from importlib import import_module
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.reference_models import SMALL_MODELS, SmallModel, changed

from csrun.data.formats import write_tokens
from csrun.estimator import CerebrasEstimator, CSRunConfig

RATE, STEPS = 0.2, 4


def one_is_quick(name: str) -> Any:
    """One case per model; tests/runtime/step/test_compute.py covers minibatches."""
    return pytest.param(name, marks=[pytest.mark.slow] * (name != "gpt2"))


@pytest.fixture(params=map(one_is_quick, SMALL_MODELS))
def model(request: pytest.FixtureRequest) -> SmallModel:
    request.getfixturevalue(request.param)  # its folder on the import path
    return SMALL_MODELS[request.param]


def trained(folder: Path, params: Any, model_fn: Any, steps: int, **config: Any) -> None:
    settings = CSRunConfig(seed=3, log_steps=1, save_checkpoints_steps=steps, **config)
    estimator = CerebrasEstimator(model_fn, folder, config=settings, params=params)
    estimator.train(import_module("data").train_input_fn, max_steps=steps)


def test_minibatches_are_the_whole_batch(own_folder, model):
    params = model.params(own_folder, dropout=RATE, attention_dropout=RATE)
    for name, count in (("whole", 1), ("split", 4)):
        config = {"minibatches_in_flight": count, "precision": "float64"}
        trained(own_folder / name, params, import_module("model").model_fn, STEPS, **config)
    file = f"model-ckpt-{STEPS}.safetensors"
    whole, split = (load_file(own_folder / name / file) for name in ("whole", "split"))
    for name, value in whole.items():
        np.testing.assert_allclose(split[name], value, rtol=1e-9, atol=1e-10, err_msg=name)


@pytest.mark.slow
def test_the_masks_of_one_and_four_minibatches_are_the_same(own_folder, model, monkeypatch):
    """Every dropout of the tiny model, in its first step."""
    write_tokens(own_folder / "text.bin", [np.random.default_rng(1).integers(0, 256, 9000)], 256)
    params = changed(model.shipped(own_folder / "text.bin"), "model", dropout=RATE)
    module, seen = import_module("model"), []
    before = module.dropped

    def dropped(x, rate):
        seen.append(before(x, rate))
        return seen[-1]

    def model_fn(*arguments):
        seen.clear()
        return replace(module.model_fn(*arguments), host_call=(take, list(seen)))

    def take(*values):
        masks.append([value != 0 for value in values])
        return {}

    monkeypatch.setattr(module, "dropped", dropped)
    masks: list[list[np.ndarray]] = []
    for count in (1, 4):
        trained(own_folder / f"{count}", params, model_fn, 1, minibatches_in_flight=count)
    whole, split = masks
    assert len(whole) >= 1 + 2 * params.model.num_hidden_layers
    for one, other in zip(whole, split, strict=True):
        np.testing.assert_array_equal(one, other)
        sigma = sqrt(RATE * (1 - RATE) / one.size)
        assert abs(one.mean() - (1 - RATE)) < 3 * sigma
        rows = one.reshape(len(one), -1)
        assert len(np.unique(rows, axis=0)) == len(rows)  # no sample has another's mask
    assert len({mask.tobytes() for mask in whole}) == len(whole)  # and no place another's
