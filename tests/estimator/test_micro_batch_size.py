"""Size of micro-batches: as set, or as the system's memory allows."""

import json
import re

import msgspec
import numpy as np
import pytest
from support.programs import SYSTEM
from support.two_classes import FEATURES, LABELS, estimator, weights

from csrun import nn
from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig
from csrun.estimator.target import Target

pytestmark = pytest.mark.usefixtures("own_folder")

STREAMING = ExecutionMode.WEIGHT_STREAMING
UNITS, STEPS = 200, 3


def forty(params):
    return Dataset.from_arrays(FEATURES, LABELS).repeat().batch(40, drop_remainder=True)


def all_forty(params):
    return Dataset.from_arrays(FEATURES, LABELS).batch(40)


@pytest.fixture
def run_on(monkeypatch):
    """Run in this process as on a streaming system with at least this many bytes."""

    def take(nbytes):
        system = msgspec.structs.replace(
            SYSTEM, mode=STREAMING, fabric_width=1, usable_cores=nbytes // 1024 + 1,
            fabric_height=nbytes // 1024 + 1, sram_kb_per_core=1,
        )  # fmt: skip
        for module in ("train", "evaluate"):
            monkeypatch.setattr(
                f"csrun.estimator.{module}.target_of",
                lambda *_: Target(None, None, system, STREAMING),
            )

    return take


def plan_of(model_dir):
    (path,) = model_dir.glob("tfcs_*/plan.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize(("size", "nearest"), [(3, "use 2 or 4"), (41, "use 40")])
def test_a_size_that_does_not_divide_the_batch_is_refused(tmp_path, size, nearest):
    expected = rf"micro_batch_size must divide batch_size 40, got {size}: {nearest}$"
    with pytest.raises(UsageError, match=expected):
        estimator(tmp_path, micro_batch_size=size).train(forty, max_steps=1)
    assert not list(tmp_path.glob("tfcs_*"))


def test_minibatches_divide_a_micro_batch(tmp_path):
    expected = "minibatches_in_flight must divide micro_batch_size 10, got 4: use 2 or 5"
    asked = estimator(tmp_path, micro_batch_size=10, minibatches_in_flight=4)
    with pytest.raises(UsageError, match=expected):
        asked.train(forty, max_steps=1)


def test_it_is_the_largest_part_of_the_batch_that_fits(tmp_path, run_on, caplog):
    """Candidates 40, 20, 10, ...: the system has room for ten samples, but not for twenty."""
    takes = {}
    run_on(SYSTEM.sram_bytes)
    for size in (40, 20, 10):
        folder = tmp_path / str(size)
        estimator(folder, UNITS, micro_batch_size=size).train(forty, max_steps=STEPS)
        plan = plan_of(folder)
        assert plan["micro_batches"] == 40 // size
        takes[size] = plan["arena_bytes"]
    assert takes[10] < takes[20] < takes[40]
    run_on(takes[10])
    with caplog.at_level("INFO", "csrun"):
        estimator(tmp_path / "auto", UNITS).train(forty, max_steps=STEPS)
    said = caplog.text
    assert said.count("Calling model_fn.") == 1
    (kept,) = re.findall(
        r"A batch of 40 samples takes [\d,]+ bytes .* has [\d,]+; estimates: (.*)", said
    )
    assert kept.endswith(" samples/s with 4 micro-batches, no recomputation")
    assert "Micro-batches: 4 of 10 samples" in caplog.text
    assert plan_of(tmp_path / "auto")["micro_batches"] == 4
    report = next((tmp_path / "auto").glob("tfcs_*/compile_report.txt")).read_text()
    assert "A batch is computed in 4 micro-batches of 10 samples" in report
    ours, asked, whole = (weights(tmp_path / name, STEPS) for name in ("auto", "10", "40"))
    for name, array in ours.items():
        np.testing.assert_array_equal(array, asked[name], err_msg=name)
        np.testing.assert_allclose(array, whole[name], rtol=1e-4, atol=1e-6, err_msg=name)
    run_on(takes[10] - 2048)
    with pytest.raises(UsageError, match=r"layer hidden needs .*: lower micro_batch_size to 8$"):
        estimator(tmp_path / "ten", UNITS, micro_batch_size=10).train(forty, max_steps=STEPS)


@pytest.mark.parametrize("recompute", ["auto", "none"])
def test_a_chosen_size_is_reused_by_the_next_start(
    tmp_path, run_on, caplog, monkeypatch, recompute
):
    """No pass of the compiler runs again; other settings need another choice."""

    def train(until, **config):
        config = CSRunConfig(save_checkpoints_steps=10, max_group_bytes=6000, **config)
        CerebrasEstimator(blocks, tmp_path, config, {}).train(forty, max_steps=until)

    run_on(SYSTEM.sram_bytes)
    train(1)
    whole = plan_of(tmp_path)
    run_on(whole["arena_bytes"] * 2 // 3)
    train(2, recompute=recompute)
    with monkeypatch.context() as patch, caplog.at_level("INFO", "csrun"):
        patch.setattr("csrun.compiler.compile.run_passes", None)
        train(3, recompute=recompute)
    assert caplog.text.count("Calling model_fn.") == 1
    assert "Cached compilation found" in caplog.text
    said = "Recomputation: " if recompute == "auto" else "Micro-batches: "
    assert said in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr("csrun.compiler.compile.run_passes", None)
        with pytest.raises(TypeError, match="not callable"):
            train(4, recompute="none" if recompute == "auto" else "auto")


def blocks(features, labels, mode, params):
    """Three blocks with a wide hidden layer, whose activations are recomputed."""
    x = nn.Dense(8, name="first")(features)
    for number in range(3):
        with nn.scope("h"), nn.scope(number):
            wide = nn.Dense(160, "gelu", name="up")(x)
            x = x + nn.Dropout(0.2)(nn.Dense(8, name="down")(wide))
    loss = nn.softmax_cross_entropy(nn.Dense(2, name="out")(x), labels)
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=nn.Adam(0.02).minimize(loss))


def test_activations_are_recomputed_if_that_is_estimated_to_be_faster(tmp_path, run_on, caplog):
    """Each of many micro-batches costs the fixed time of a batch."""

    def train(name, **config):
        # Layers of a few kilobytes would come as one, and a segment is at least what comes at once.
        config = CSRunConfig(save_checkpoints_steps=10, max_group_bytes=6000, **config)
        CerebrasEstimator(blocks, tmp_path / name, config, {}).train(forty, max_steps=STEPS)
        return plan_of(tmp_path / name), weights(tmp_path / name, STEPS)

    run_on(SYSTEM.sram_bytes)
    whole, expected = train("whole")
    assert not whole["recomputed"]
    run_on(whole["arena_bytes"] * 2 // 3)
    with caplog.at_level("INFO", "csrun"):
        plan, found = train("auto")
    assert plan["micro_batches"] == 1
    assert (count := len(plan["recomputed"]))
    assert f"Recomputation: {count} segments are recomputed in the backward pass" in caplog.text
    kept, _ = train("none", recompute="none")
    assert kept["micro_batches"] > 1
    assert not kept["recomputed"]
    assert plan["estimate"]["samples_per_sec"] > kept["estimate"]["samples_per_sec"]
    asked, same = train("asked", micro_batch_size=40)
    assert asked["recomputed"] == plan["recomputed"]
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        np.testing.assert_array_equal(same[name], array, err_msg=name)
    with pytest.raises(UsageError, match="lower batch_size to"):
        train("refused", micro_batch_size=40, recompute="none")


def test_predictions_and_metrics_are_those_of_the_whole_batch(tmp_path, run_on):
    run_on(SYSTEM.sram_bytes)
    estimator(tmp_path, UNITS).train(forty, max_steps=1)
    whole, parts = (estimator(tmp_path, UNITS, micro_batch_size=size) for size in ("auto", 5))
    expected, found = (each.evaluate(all_forty) for each in (whole, parts))
    assert found == pytest.approx(expected, rel=1e-6)
    expected, found = (list(each.predict(all_forty)) for each in (whole, parts))
    assert len(found) == 40
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours["logits"], theirs["logits"], rtol=1e-5, atol=1e-6)
