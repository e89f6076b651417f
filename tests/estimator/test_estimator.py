"""The estimator on the CPU: trainings of a small model, resuming, and their ends."""

import json
import shutil
import signal
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.two_classes import (
    FEATURES,
    LABELS,
    estimator,
    eval_input,
    logits_of,
    model_fn,
    summaries,
    train_input,
    warnings,
    weights,
)
from threadpoolctl import threadpool_info

from csrun import nn
from csrun.base import stored
from csrun.base.errors import UsageError
from csrun.base.mode import BURST_S, ExecutionMode, RunMode
from csrun.base.version import VERSION
from csrun.data import Dataset
from csrun.data.ops.shuffle import ORDER
from csrun.estimator import CerebrasEstimator, CSRunConfig
from csrun.estimator.compile_options import minibatches_in_flight
from csrun.estimator.model_trace import trace_model
from csrun.executable import BatchSplit
from csrun.records import checkpoints
from csrun.runtime.chief.training.saving import Saving

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize("method", ["evaluate", "predict", "evaluate_all", "train"])
def test_a_limit_below_one_is_refused(trained, method):
    with pytest.raises(UsageError, match=f"{method}: steps must be at least 1, got 0"):
        getattr(estimator(trained), method)(eval_input, steps=0)


def test_a_resumed_training_says_what_has_changed(trained, tmp_path, caplog):
    folder = shutil.copytree(trained, tmp_path / "m")

    def larger(params):
        return Dataset.from_arrays(FEATURES, LABELS).repeat().batch(10, drop_remainder=True)

    estimator(folder).train(train_input, max_steps=31)
    assert warnings(caplog) == []
    estimator(folder, seed=9).train(larger, max_steps=32)
    assert [line.split(":")[0] for line in warnings(caplog)] == [
        "seed was 1 when model-ckpt-31 was written and is 9 now",
        "batch_size was 8 when model-ckpt-31 was written and is 10 now",
    ]


def change_identity(path, **changes):
    manifest = stored.read(path, checkpoints.Manifest, "the manifest")
    identity = manifest.identity | changes
    stored.write(path, msgspec.structs.replace(manifest, identity=identity))


def test_a_training_that_goes_on_elsewhere_says_that_its_digits_differ(trained, tmp_path, caplog):
    """A checkpoint records all that its bits depend on: this machine's NumPy, BLAS and threads."""
    folder = shutil.copytree(trained, tmp_path / "m")
    manifest = folder / "model-ckpt-30.json"
    plain = json.loads(manifest.read_text())
    assert plain["identity"]["numpy"] == np.__version__
    assert plain["identity"]["csrun"] == VERSION
    (blas,) = (info for info in threadpool_info() if "numpy" in info.get("filepath", ""))
    assert plain["identity"]["blas"].endswith(f"{blas['version']} {blas['architecture']}")
    assert plain["identity"]["threads"] == "1"
    change_identity(manifest, blas="openblas 0.3 Prescott")
    estimator(folder).train(train_input, max_steps=31)
    (line,) = warnings(caplog)
    assert line.startswith(
        "model-ckpt-30 was written in another environment: blas was openblas 0.3 Prescott and"
    )
    assert line.endswith("its results differ in the last digits from an uninterrupted run")


def test_a_training_in_another_order_of_the_data_is_not_gone_on_with(trained, tmp_path):
    folder = tmp_path / "model_dir"
    shutil.copytree(trained, folder)
    manifest = folder / "model-ckpt-30.json"
    plain = json.loads(manifest.read_text())
    assert plain["identity"]["order"] == ORDER
    change_identity(manifest, order="as in a deck of cards")
    said = r"model-ckpt-30.safetensors: its data order .* differs from .*warm_start"
    with pytest.raises(UsageError, match=said):
        estimator(folder).train(train_input, max_steps=31)


def test_a_finished_training_says_what_to_change_in_words_of_any_script(trained, caplog):
    """A user's script need not have the options of csrun.params."""
    with caplog.at_level("INFO", "csrun"):
        estimator(trained).train(train_input, max_steps=30)
    said = caplog.messages[-1]
    assert said.endswith("nothing to train; raise max_steps or choose another model_dir")
    assert "--" not in said


@pytest.mark.parametrize(("count", "nearest"), [(3, "use 2 or 4"), (9, "use 8")])
def test_minibatches_that_do_not_divide_the_batch_are_refused(tmp_path, count, nearest):
    with pytest.raises(UsageError, match=rf"must divide batch_size 8, got {count}: {nearest}"):
        estimator(tmp_path, minibatches_in_flight=count).train(train_input, max_steps=1)
    assert not list(tmp_path.glob("model-ckpt-*"))


@pytest.mark.parametrize(("systems", "nearest"), [(3, "6 or 9"), (9, "9")])
def test_systems_that_do_not_divide_the_batch_are_refused(systems, nearest):
    said = f"num_csx must divide batch_size 8, got {systems}: use batch_size "
    with pytest.raises(UsageError, match=said + nearest):
        trace_model(
            model_fn, train_input(None), RunMode.TRAIN, None, "float32", BatchSplit(systems=systems)
        )


def test_several_minibatches_are_refused_in_weight_streaming():
    config = CSRunConfig(minibatches_in_flight=2)
    assert minibatches_in_flight(config, ExecutionMode.PIPELINED) == 2
    with pytest.raises(UsageError, match="must be 1 in weight streaming, got 2"):
        minibatches_in_flight(config, ExecutionMode.WEIGHT_STREAMING)


def test_train_and_evaluate_trains_as_train_does(trained, tmp_path, caplog):
    with caplog.at_level("INFO", "csrun"):
        results = estimator(tmp_path).train_and_evaluate(train_input, eval_input, 30)
    assert results["global_step"] == 30
    assert [m.split(":")[0] for m in caplog.messages if m.startswith("Saving dict")] == [
        f"Saving dict for global step {step}" for step in (10, 20, 30)
    ]
    for name, value in weights(trained, 30).items():
        np.testing.assert_array_equal(value, weights(tmp_path, 30)[name])


def test_train_and_evaluate_goes_on_to_the_next_multiple(tmp_path, caplog):
    estimator(tmp_path).train(train_input, max_steps=13)
    with caplog.at_level("INFO", "csrun"):
        estimator(tmp_path).train_and_evaluate(train_input, eval_input, 35)
    assert [m.split(":")[0] for m in caplog.messages if m.startswith("Saving dict")] == [
        f"Saving dict for global step {step}" for step in (20, 30, 35)
    ]


def five_batches(params):
    return Dataset.from_arrays(FEATURES, LABELS).batch(8)


def test_data_that_ends_before_the_last_step_is_said(tmp_path, caplog):
    remedy = "call .repeat() in input_fn, or train fewer steps"
    assert estimator(tmp_path).train(five_batches, max_steps=20)["global_step"] == 5
    assert warnings(caplog) == [f"The dataset ended at step 5 of 20: {remedy}"]
    caplog.clear()
    with caplog.at_level("INFO", "csrun"):
        estimator(tmp_path).train(five_batches, steps=3)  # goes on after the fifth batch
    assert warnings(caplog) == [f"The dataset ended at step 5 of 8: {remedy}"]
    assert caplog.messages[-1].startswith("Training finished with 0 samples")


@pytest.mark.parametrize("limits", [{"steps": 5}, {"max_steps": 5}, {}])
def test_data_that_ends_where_the_training_does_is_as_wanted(tmp_path, caplog, limits):
    assert estimator(tmp_path).train(five_batches, **limits)["global_step"] == 5
    assert warnings(caplog) == []


@pytest.mark.parametrize("every", [5, 10])
def test_train_and_evaluate_evaluates_once_where_the_data_ends(tmp_path, caplog, every):
    wanted = estimator(tmp_path, save_checkpoints_steps=every)
    with caplog.at_level("INFO", "csrun"):
        results = wanted.train_and_evaluate(five_batches, eval_input, 30)
    assert results["global_step"] == 5
    assert len([m for m in caplog.messages if m.startswith("Saving dict")]) == 1
    assert len(warnings(caplog)) == 1


def test_the_checkpoint_at_step_0_may_be_left_out(tmp_path):
    quick = estimator(tmp_path, save_initial_checkpoint=False, save_checkpoints_steps=4)
    quick.train(train_input, max_steps=10)
    assert checkpoints.kept_steps(tmp_path) == (4, 8, 10)


@pytest.mark.parametrize(("keys", "step"), [(1, 1), (2, 0)], ids=["one", "a second one"])
def test_ctrl_c_during_the_first_checkpoint(tmp_path, caplog, monkeypatch, keys, step):
    """The first signal ends the training after its next step, which is saved; another at once."""
    begin = Saving.begin

    def interrupted(saving, at, *state):
        begin(saving, at, *state)
        for _ in range(keys if at == 0 else 0):
            signal.raise_signal(signal.SIGINT)
            time.sleep(BURST_S)  # two at the same moment are one

    monkeypatch.setattr(Saving, "begin", interrupted)
    caplog.set_level("INFO", "csrun")
    with pytest.raises(KeyboardInterrupt):
        estimator(tmp_path).train(train_input, max_steps=20)
    (became,) = [line for line in caplog.messages if line.startswith("Checkpoint at global step")]
    assert became.split()[4] == str(step)
    is_whole = step in checkpoints.kept_steps(tmp_path)
    assert ("completed" in became) == is_whole
    assert is_whole or keys == 2
    assert not list(tmp_path.glob(".csrun-*"))


def test_train_and_evaluate_needs_an_end(tmp_path):
    with pytest.raises(UsageError, match="needs max_steps"):
        estimator(tmp_path).train_and_evaluate(train_input, eval_input, None)


def test_a_compile_of_another_version_is_replaced_and_said(tmp_path, caplog):
    def said(max_steps):
        caplog.clear()
        with caplog.at_level("INFO", "csrun"):
            estimator(tmp_path).train(train_input, max_steps=max_steps)
        places = (line for line in caplog.messages if str(tmp_path / "tfcs_") in line)
        return [line for line in places if "Input Function Report" not in line]

    (line,) = said(1)
    assert line.startswith("Compiled in ")
    (plan,) = tmp_path.glob("tfcs_*/plan.json")
    plan.write_text("{}")
    first, second = said(2)
    assert first.startswith(f"{plan.parent} was damaged or written by another version")
    assert second.startswith("Compiled in ")
    assert said(3) == [f"Cached compilation found for this model configuration: {plan.parent}"]


def test_a_checkpoint_holds_adams_state(trained):
    names = set(weights(trained, 30))
    assert {"gradient_sum/out/kernel", "square_sum/out/kernel", "out/kernel"} <= names


def test_validation_leaves_nothing(tmp_path, caplog):
    with caplog.at_level("INFO", "csrun"):
        estimator(tmp_path / "m").validate(train_input)
    assert "Validated: 2 layers" in caplog.text
    assert not (tmp_path / "m").exists()


def test_summaries_are_in_the_events_at_log_steps(tmp_path):
    estimator(tmp_path, save_checkpoints_steps=4).train(train_input, max_steps=5)
    found = summaries(tmp_path)
    state, rows = weights(tmp_path, 4), np.arange(32, 40)  # the batch of the fifth step
    logits = logits_of(state)[rows]
    value = found[5, "logits_mean"].simple_value
    assert value == pytest.approx(logits.mean(), rel=1e-4, abs=1e-6)
    hidden = np.tanh(FEATURES @ state["hidden/kernel"] + state["hidden/bias"])[rows]
    histogram = found[5, "hidden_values"].histo
    assert histogram.num == hidden.size
    assert histogram.min == pytest.approx(hidden.min(), rel=1e-4)
    assert histogram.sum == pytest.approx(hidden.sum(), rel=1e-3)
    assert {step for step, tag in found if tag == "hidden_values"} == {1, 5}


def test_a_summarys_name_is_given_once(tmp_path):
    def twice(features, labels, mode, params):
        nn.summary.scalar("same", features)
        nn.summary.histogram("same", features)

    with pytest.raises(UsageError, match=r"test_estimator.py:\d+: summary.histogram: .*'same'"):
        CerebrasEstimator(twice, tmp_path).train(train_input, max_steps=1)


@pytest.mark.parametrize("method", ["train", "evaluate", "predict"])
def test_a_command_that_only_compiles_ends_the_script_with_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv("CSRUN_PREPARATION", "compile_only")
    with pytest.raises(SystemExit) as ended:
        getattr(estimator(tmp_path / "run"), method)(train_input, steps=1)
    assert ended.value.code == 0
    assert list(tmp_path.glob("run/tfcs_*/program.py"))
    assert not list(tmp_path.glob("run/*.safetensors"))


def test_a_command_that_only_validates_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CSRUN_PREPARATION", "validate_only")
    with pytest.raises(SystemExit) as ended:
        estimator(tmp_path / "run").train(train_input, max_steps=2)
    assert ended.value.code == 0
    assert not (tmp_path / "run").exists()
