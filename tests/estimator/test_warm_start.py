"""Warm start: training from the weights of another training."""

import numpy as np
import pytest
from support.two_classes import estimator, train_input, weights

from csrun.base.errors import CsrunError, UsageError
from csrun.estimator import WarmStart

pytestmark = pytest.mark.usefixtures("own_folder")


def test_a_warm_start_takes_the_named_tensors(trained, tmp_path):
    start = WarmStart(checkpoint_path=str(trained / "model-ckpt-30"), tensors=("^hidden/",))
    estimator(tmp_path, warm_start=start).train(train_input, max_steps=1)
    old, new, fresh = weights(trained, 30), weights(tmp_path, 0), weights(trained, 0)
    np.testing.assert_array_equal(new["hidden/kernel"], old["hidden/kernel"])
    np.testing.assert_array_equal(new["hidden/bias"], old["hidden/bias"])
    np.testing.assert_array_equal(new["out/kernel"], fresh["out/kernel"])
    assert not new["gradient_sum/hidden/kernel"].any()


def test_a_warm_start_is_for_the_first_step_only(trained, tmp_path):
    start = WarmStart(checkpoint_path=str(trained / "model-ckpt-30"))
    estimator(tmp_path, warm_start=start).train(train_input, max_steps=10)
    before = weights(tmp_path, 10)
    estimator(tmp_path, warm_start=start).train(train_input, max_steps=20)
    estimator(tmp_path / "other", warm_start=start).train(train_input, max_steps=20)
    after, straight = weights(tmp_path, 20), weights(tmp_path / "other", 20)
    assert not np.array_equal(before["out/kernel"], after["out/kernel"])
    np.testing.assert_array_equal(after["out/kernel"], straight["out/kernel"])


def test_a_warm_start_from_another_model_names_the_tensors(trained, tmp_path):
    start = WarmStart(checkpoint_path=str(trained / "model-ckpt-30"))
    with pytest.raises(UsageError) as caught:
        estimator(tmp_path, units=7, warm_start=start).train(train_input, max_steps=1)
    message = str(caught.value)
    assert (
        "tensor hidden/kernel: the checkpoint has float32[6, 5], the model float32[6, 7]" in message
    )
    assert "tensor out/bias" not in message
    assert not list(tmp_path.glob("model-ckpt-*"))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"tensors": ("conv",)}, "'conv' matches no parameter; the model has hidden/kernel, "),
        ({"tensors": ("(",)}, "must be regular expressions, got '('"),
        ({"checkpoint_path": "nowhere/model-ckpt-1"}, "nowhere/model-ckpt-1: no checkpoint"),
    ],
)
def test_a_wrong_warm_start_is_refused(trained, tmp_path, start, message):
    wanted = WarmStart(**{"checkpoint_path": str(trained / "model-ckpt-30"), **start})
    with pytest.raises(CsrunError) as caught:
        estimator(tmp_path, warm_start=wanted).train(train_input, max_steps=1)
    assert message in str(caught.value)
