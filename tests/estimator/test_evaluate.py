"""Evaluations and predictions on the CPU, and their events."""

import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from support.two_classes import (
    FEATURES,
    LABELS,
    estimator,
    eval_input,
    logits_of,
    mean_loss,
    model_fn,
    summaries,
    train_input,
    warnings,
    weights,
)

from csrun import nn
from csrun.base.errors import UsageError
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, target
from csrun.records import checkpoints

pytestmark = pytest.mark.usefixtures("own_folder")


def features_only(params):
    return Dataset.from_arrays(FEATURES).batch(16)


@pytest.mark.parametrize("input_fn", [eval_input, features_only])
def test_predictions_are_the_models_for_each_sample_in_order(trained, input_fn):
    predictions = estimator(trained).predict(input_fn)
    expected = logits_of(weights(trained, 30))
    np.testing.assert_allclose([p["logits"] for p in predictions], expected, rtol=1e-4, atol=1e-5)
    assert [p["class"] for p in predictions] == expected.argmax(1).tolist()


def test_predictions_of_some_batches_and_of_another_checkpoint(trained):
    predictions = estimator(trained).predict(
        eval_input, steps=2, checkpoint_path=trained / "model-ckpt-10"
    )
    expected = logits_of(weights(trained, 10))[:32]
    np.testing.assert_allclose([p["logits"] for p in predictions], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_the_checkpoint_is_chosen_after_the_wait_for_a_system(
    trained, tmp_path, monkeypatch, caplog, method
):
    """While the evaluation compiles and waits for a system, a concurrent training continues."""
    folder = shutil.copytree(trained, tmp_path / "m")
    loaded_machine = target.loaded_machine

    @contextmanager
    def after_a_wait(*arguments):
        monkeypatch.undo()
        estimator(folder, keep_checkpoint_max=1).train(train_input, max_steps=40)
        with loaded_machine(*arguments) as machine:
            yield machine

    monkeypatch.setattr(target, "loaded_machine", after_a_wait)
    with caplog.at_level("INFO", "csrun"):
        getattr(estimator(folder), method)(eval_input)
    assert checkpoints.kept_steps(folder) == (40,)
    assert caplog.messages[-2].endswith("model-ckpt-40.safetensors")


def test_eval_all_evaluates_every_checkpoint(trained):
    results = estimator(trained).evaluate_all(eval_input)
    assert [r["global_step"] for r in results] == [0, 10, 20, 30]
    expected = [mean_loss(weights(trained, step)) for step in (0, 10, 20, 30)]
    assert [r["loss"] for r in results] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint32", "int64", "uint64"])
def test_padding_does_not_count_whatever_the_labels_type(trained, dtype):
    def labelled(params):
        return Dataset.from_arrays(FEATURES, LABELS.astype(dtype)).batch(16)

    loss = estimator(trained).evaluate(labelled)["loss"]
    assert loss == pytest.approx(mean_loss(weights(trained, 30)), rel=1e-5)


def test_evaluations_are_events_at_their_checkpoints_steps(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "m", ignore=shutil.ignore_patterns("eval"))
    estimator(folder).evaluate(eval_input, checkpoint_path=folder / "model-ckpt-10")
    estimator(folder).evaluate_all(eval_input)
    found = {at: value.simple_value for at, value in summaries(folder / "eval").items()}
    steps = (0, 10, 20, 30)
    assert set(found) == {(step, tag) for step in steps for tag in ("loss", "positive")}
    for step in steps:
        state = weights(folder, step)
        assert found[step, "loss"] == pytest.approx(mean_loss(state), rel=1e-5)
        positive = logits_of(state).argmax(1).mean()
        assert found[step, "positive"] == pytest.approx(positive)
    assert len(list((folder / "eval").glob("events.out.tfevents.*"))) == 5


def test_train_and_evaluate_leaves_an_event_for_each_evaluation(tmp_path):
    estimator(tmp_path).train_and_evaluate(train_input, eval_input, 25)
    losses = {step for step, tag in summaries(tmp_path / "eval") if tag == "loss"}
    assert losses == {10, 20, 25}


def test_an_evaluation_whose_events_cannot_be_written_stands(trained, tmp_path, caplog):
    folder = shutil.copytree(trained, tmp_path / "m", ignore=shutil.ignore_patterns("eval"))
    (folder / "eval").touch()
    bare = CerebrasEstimator(lambda *given: model_fn(*given[:3], {"units": 5}), folder)
    with caplog.at_level("INFO", "csrun"):
        results = bare.evaluate(eval_input)
    assert results["loss"] == pytest.approx(mean_loss(weights(trained, 30)), rel=1e-5)
    assert caplog.messages[-2].startswith("Saving dict for global step 30: ")
    (notice,) = warnings(caplog)
    assert (
        f"cannot write the evaluation's event file: {folder / 'eval'}: is not a folder; " in notice
    )


def test_anothers_checkpoints_are_evaluated_without_a_trace_in_their_folder(trained, tmp_path):
    theirs = shutil.copytree(trained, tmp_path / "theirs")
    before = sorted(theirs.rglob("*"))
    results = estimator(tmp_path / "mine").evaluate(eval_input, checkpoint_path=theirs)
    assert results["global_step"] == 30
    assert summaries(tmp_path / "mine" / "eval")[30, "loss"].simple_value > 0
    assert sorted(theirs.rglob("*")) == before


def test_predicting_needs_predictions_and_a_checkpoint(trained, tmp_path):
    with pytest.raises(UsageError, match="no checkpoint"):
        estimator(tmp_path).predict(eval_input)
    bare = CerebrasEstimator(lambda *_: CSEstimatorSpec(mode=nn.PREDICT), trained)
    with pytest.raises(UsageError, match="needs predictions to predict, got none"):
        bare.predict(eval_input)
