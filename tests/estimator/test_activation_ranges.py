"""Ranges of stored activations against NumPy, and the operator that overflows first."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.two_classes import FEATURES, LABELS, summaries

from csrun import nn
from csrun.base.errors import CsrunError
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig

pytestmark = pytest.mark.usefixtures("own_folder")
EVERY, STEPS = 3, 6


def input_fn(scale):
    """Batches that all have the first 8 samples."""
    return Dataset.from_arrays(FEATURES[:8] * np.float32(scale), LABELS[:8]).repeat().batch(8)


def model_fn(features, labels, mode, scale):
    hidden = nn.Dense(5, activation="relu", name="hidden")(features)
    logits = nn.Dense(2, name="out")(hidden)
    loss = nn.softmax_cross_entropy(logits, labels)
    return CSEstimatorSpec(mode, loss=loss, train_op=nn.SGD(0.01).minimize(loss))


def train(folder, scale, **options):
    config = CSRunConfig(precision="mixed_float16", save_checkpoints_steps=1, **options)
    CerebrasEstimator(model_fn, folder, config, scale).train(input_fn, max_steps=STEPS)
    return load_file(folder / f"model-ckpt-{STEPS}.safetensors")


def expected_shares(folder, scale, step):
    """Shares expected of the hidden layer in a step, by the weights before it."""
    state = load_file(folder / f"model-ckpt-{step - 1}.safetensors")
    kernel, bias = (state[f"hidden/{name}"].astype(np.float16) for name in ("kernel", "bias"))
    inputs = (FEATURES[:8] * np.float32(scale)).astype(np.float16)
    products = (inputs.astype(np.float64) @ kernel).astype(np.float16)
    values = np.maximum(products + bias, 0)
    powers = np.floor(np.log2(values[values > 0].astype(np.float64)))
    return {
        "zeros": np.mean(values == 0),
        "subnormals": np.mean((values > 0) & (values < 2.0**-14)),
        "overflows": np.mean(np.isinf(values)),
    }, (powers.min(), powers.max())


@pytest.mark.parametrize("parts", ["auto", 4])
def test_shares_of_a_layers_results(tmp_path, parts):
    scale = 2.0**-14
    trained = train(tmp_path, scale, number_ranges=EVERY, micro_batch_size=parts)
    events = summaries(tmp_path)
    for step in (EVERY, STEPS):
        shares, powers = expected_shares(tmp_path, scale, step)
        assert shares["subnormals"] > 0
        for name, share in shares.items():
            tag = f"ranges/activation/hidden/relu/{name}"
            assert events[step, tag].simple_value == pytest.approx(share)
        found = events[step, "ranges/activation/hidden/relu/log2"].histo
        assert (found.min, found.max) == powers
    assert (1, "ranges/activation/hidden/relu/zeros") not in events
    page = (tmp_path / "number_ranges.html").read_text()
    assert "<td>hidden/relu<td>activation<" in page
    assert not list(tmp_path.glob("tfcs_*/ranges/*"))
    plain = train(tmp_path / "plain", scale, micro_batch_size=parts)
    assert all(plain[name].tobytes() == value.tobytes() for name, value in trained.items())


def test_a_loss_that_is_not_finite_names_the_operator(tmp_path):
    place = (
        r"first in layer hidden \(.*\), operator (mm|add|relu), .*test_activation_ranges\.py:\d+"
    )
    with pytest.raises(CsrunError) as caught:
        train(tmp_path, 2.0**14, number_ranges=EVERY)
    assert re.search(rf"loss is (nan|inf) at step \d, {place}: training stopped", str(caught.value))
