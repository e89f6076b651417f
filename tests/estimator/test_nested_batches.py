"""Models with several inputs, nested as in the input function, in every mode."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from csrun import nn
from csrun.base.errors import CsrunError
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec

random = np.random.default_rng(6)
A, B, C = (random.standard_normal((48, n)).astype(np.float32) for n in (3, 2, 1))
SIGN = (A[:, 0] > 0).astype(np.int32)
SIDE = (B[:, 1] > 0).astype(np.int32)
STEPS = 6


def two_heads(x: nn.Tensor, sign: nn.Tensor, side: nn.Tensor) -> Any:
    hidden = nn.Dense(8, activation="relu", name="hidden")(x)
    first = nn.Dense(2, name="sign")(hidden)
    second = nn.Dense(2, name="side")(hidden)
    loss = nn.softmax_cross_entropy(first, sign) + nn.softmax_cross_entropy(second, side)
    return first, loss


def nested_model(features: Any, labels: Any, mode: str, params: Any) -> CSEstimatorSpec:
    """Model of five arrays: a tuple and an array in a dict, and a dict of labels."""
    (a, b), c = features["pair"], features["one"]
    x = nn.Dense(4, name="a")(a) + nn.Dense(4, name="b")(b) + nn.Dense(4, name="c")(c)
    if mode == nn.PREDICT:
        return CSEstimatorSpec(mode=mode, predictions={"sign": nn.Dense(2, name="sign")(x)})
    logits, loss = two_heads(x, labels["sign"], labels["side"])
    return CSEstimatorSpec(
        mode=mode,
        loss=loss,
        train_op=nn.SGD(0.1).minimize(loss) if mode == nn.TRAIN else None,
        host_call=(
            lambda sign, logits: {"right": float((logits.argmax(1) == sign).mean())},
            [labels["sign"], logits],
        ),
    )


def nested_input(params: Any) -> Dataset:
    features = {"pair": (A, B), "one": C}
    return Dataset.from_arrays(features, {"side": SIDE, "sign": SIGN}).repeat(1).batch(8)


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / f"model-ckpt-{STEPS}.safetensors")


def test_five_inputs_train_evaluate_and_predict_as_pytorch_does(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    estimator = CerebrasEstimator(nested_model, tmp_path)
    results = estimator.train(nested_input, max_steps=STEPS)
    assert results["global_step"] == STEPS
    evaluated = estimator.evaluate(nested_input)
    t = {name: torch.from_numpy(value) for name, value in weights(tmp_path).items()}

    def dense(x: Any, name: str) -> Any:
        return x @ t[f"{name}/kernel"] + t[f"{name}/bias"]

    parts = {"a": A, "b": B, "c": C}
    x = sum(dense(torch.from_numpy(values), name) for name, values in parts.items())
    hidden = dense(x, "hidden").relu()
    cross_entropy = torch.nn.functional.cross_entropy
    expected = cross_entropy(dense(hidden, "sign"), torch.from_numpy(SIGN).long())
    expected += cross_entropy(dense(hidden, "side"), torch.from_numpy(SIDE).long())
    assert evaluated["loss"] == pytest.approx(expected.item(), rel=1e-5)
    right = (dense(hidden, "sign").argmax(1).numpy() == SIGN).mean()
    assert evaluated["right"] == pytest.approx(right)


def test_a_prediction_needs_no_labels(tmp_path: Path) -> None:
    def alone(params: Any) -> Any:
        return ({"x": A[k : k + 8], "y": {"z": B[k : k + 8]}} for k in range(0, 48, 8))

    def model(features: Any, labels: Any, mode: str, params: Any) -> CSEstimatorSpec:
        assert labels is None
        x = nn.Dense(2, name="x")(features["x"]) + nn.Dense(2, name="z")(features["y"]["z"])
        if mode == nn.PREDICT:
            return CSEstimatorSpec(mode=mode, predictions={"x": x})
        loss = nn.sum(x * x, axis=(0, 1))
        return CSEstimatorSpec(mode=mode, loss=loss, train_op=nn.SGD(0.001).minimize(loss))

    estimator = CerebrasEstimator(model, tmp_path)
    estimator.train(alone, max_steps=STEPS)
    t = weights(tmp_path)
    expected = A @ t["x/kernel"] + t["x/bias"] + B @ t["z/kernel"] + t["z/bias"]
    found = [row["x"] for row in estimator.predict(alone)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_later_batch_of_another_shape_is_told_by_its_key(tmp_path: Path) -> None:
    def batches(params: Any) -> Any:
        for columns in (2, 2, 1):
            yield (
                {"pair": (A[:8], B[:8, :columns]), "one": C[:8]},
                {
                    "sign": SIGN[:8],
                    "side": SIDE[:8],
                },
            )

    with pytest.raises(CsrunError, match=r"batch 2 .*: features/pair/1 must have shape \[8, 2\]"):
        CerebrasEstimator(nested_model, tmp_path).train(batches, max_steps=STEPS)


def test_three_parts_are_told_where_to_go(tmp_path: Path) -> None:
    def batches(params: Any) -> Any:
        yield A, B, SIGN

    with pytest.raises(CsrunError, match=r"features, labels.* got 3 arrays: .*\(\(a, b\), lab"):
        CerebrasEstimator(nested_model, tmp_path).train(batches, max_steps=STEPS)


def test_booleans_of_a_batch_are_booleans_in_the_model(tmp_path: Path) -> None:
    seen, kept = random.standard_normal((12, 3)) > 0, A[:12]

    def model(features: Any, labels: Any, mode: str, params: Any) -> CSEstimatorSpec:
        x, mask = features
        chosen = nn.where(mask, x, -1.0)
        loss = nn.mean(nn.sum(nn.Dense(1)(chosen), 1), 0)
        return CSEstimatorSpec(
            mode=mode,
            loss=loss,
            train_op=nn.SGD(0.1).minimize(loss) if mode == nn.TRAIN else None,
            predictions={"x": chosen, "same": mask == (x > 0)},
        )

    def batches(params: Any) -> Dataset:
        return Dataset.from_arrays((kept, seen), np.zeros(12, np.int32)).batch(5)

    estimator = CerebrasEstimator(model, tmp_path)
    estimator.train(batches, max_steps=1)
    rows = list(estimator.predict(batches))
    np.testing.assert_array_equal([row["x"] for row in rows], np.where(seen, kept, -1))
    np.testing.assert_array_equal([row["same"] for row in rows], seen == (kept > 0))
