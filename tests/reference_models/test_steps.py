"""Steps of gpt2, gptj and bert against PyTorch, and in different configurations."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.reference_models import (
    CLIP,
    RATE,
    SMALL_MODELS,
    SmallModel,
    assert_same_step,
    batches,
    one_thread,
    weights_of,
)

from csrun.base.mode import ExecutionMode

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the models")

LIMITS = {"float32": (1e-5, 1e-4), "float64": (1e-12, 1e-11)}  # of the loss; of a gradient


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread(torch):
        yield


@pytest.fixture(params=SMALL_MODELS)
def model(request: pytest.FixtureRequest) -> SmallModel:
    request.getfixturevalue(request.param)  # its folder on the import path
    return SMALL_MODELS[request.param]


@pytest.fixture
def params(model: SmallModel, tmp_path: Path) -> Any:
    return model.params(tmp_path)


@pytest.mark.parametrize("precision", LIMITS)
def test_a_step_is_pytorchs(tmp_path, model, params, precision):
    machine = model.machine(tmp_path, params, precision)
    for batch in batches(params, 1, precision):
        peer = model.peer(torch, weights_of(machine), params.model)
        assert_same_step(machine, peer, batch, *LIMITS[precision])


def test_the_step_after_a_hundred_is_pytorchs(tmp_path, model, params):
    machine = model.machine(tmp_path, params, "float32")
    *before, batch = batches(params, 101, "float32")
    for flat, _ in before:
        machine.train(flat)
    peer = model.peer(torch, weights_of(machine), params.model)
    assert_same_step(machine, peer, batch, *LIMITS["float32"])


def test_a_training_follows_pytorchs(tmp_path, model, params):
    machine = model.machine(tmp_path, params)
    peer = model.peer(torch, weights_of(machine), params.model)
    some = list(batches(params, 20))
    ours = [machine.train(flat)[0] for flat, _ in some]
    expected = peer.train([nested for _, nested in some], RATE, CLIP)
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=0)


def test_both_modes_give_the_same_bits(tmp_path, model, params):
    machines = [model.machine(tmp_path, params, "float32", mode) for mode in ExecutionMode]
    for flat, _ in batches(params, 3, "float32"):
        first, second = (machine.train(flat)[0] for machine in machines)
        assert first == second
    for name, value in machines[0].state.items():
        np.testing.assert_array_equal(value, machines[1].state[name], err_msg=name)
