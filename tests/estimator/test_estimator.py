"""The estimator on the CPU: evaluations, predictions, warm starts, summaries of a small model."""

import json
import logging
import shutil
from contextlib import chdir, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file
from tensorboardX.proto.event_pb2 import Event
from threadpoolctl import threadpool_info

from csrun import nn
from csrun.base import stored
from csrun.base.errors import CsrunError, UsageError
from csrun.base.mode import ExecutionMode
from csrun.data import Dataset
from csrun.data.ops.shuffle import ORDER
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig, WarmStart, place
from csrun.estimator.compilation import minibatches_in_flight
from csrun.records import checkpoints

pytestmark = pytest.mark.usefixtures("own_folder")

random = np.random.default_rng(4)
FEATURES = random.standard_normal((40, 6)).astype(np.float32)
LABELS = (FEATURES[:, 0] > 0).astype(np.int32)


def train_input(params):
    return Dataset.from_arrays(FEATURES, LABELS).repeat().batch(8, drop_remainder=True)


def eval_input(params):
    """Forty samples in batches of 16: the last has 8."""
    return Dataset.from_arrays(FEATURES, LABELS).batch(16)


def features_only(params):
    return Dataset.from_arrays(FEATURES).batch(16)


def model_fn(features, labels, mode, params):
    hidden = nn.Dense(params["units"], activation="tanh", name="hidden")(features)
    logits = nn.Dense(2, name="out")(hidden)
    if mode == nn.PREDICT:
        return CSEstimatorSpec(
            mode=mode, predictions={"class": nn.argmax(logits), "logits": logits}
        )
    nn.summary.scalar("logits_mean", logits)
    nn.summary.histogram("hidden_values", hidden)
    loss = nn.softmax_cross_entropy(logits, labels)
    train_op = nn.Adam(0.02).minimize(loss)
    host_call = (shares, [nn.argmax(logits)]) if mode == nn.EVAL else None
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=train_op, host_call=host_call)


def shares(classes):
    return {"positive": float(np.mean(classes))}


def estimator(model_dir, units=5, **config):
    config = {"save_checkpoints_steps": 10, "log_steps": 5, **config}
    return CerebrasEstimator(model_fn, model_dir, CSRunConfig(**config), {"units": units})


def weights(model_dir, step):
    return load_file(Path(model_dir) / f"model-ckpt-{step}.safetensors")


def logits_of(state):
    hidden = np.tanh(FEATURES @ state["hidden/kernel"] + state["hidden/bias"])
    return hidden @ state["out/kernel"] + state["out/bias"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model_dir with checkpoints at 0, 10, 20 and 30."""
    folder = tmp_path_factory.mktemp("trained")
    with chdir(folder):
        estimator(folder).train(train_input, max_steps=30)
    return folder


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
def test_the_checkpoint_is_chosen_when_the_machine_is_there(
    trained, tmp_path, monkeypatch, caplog, method
):
    """While an evaluation compiles and waits for a system, a training goes on beside it."""
    folder = shutil.copytree(trained, tmp_path / "m")
    loaded_machine = place.loaded_machine

    @contextmanager
    def after_a_wait(*arguments):
        monkeypatch.undo()
        estimator(folder, keep_checkpoint_max=1).train(train_input, max_steps=40)
        with loaded_machine(*arguments) as machine:
            yield machine

    monkeypatch.setattr(place, "loaded_machine", after_a_wait)
    with caplog.at_level("INFO", "csrun"):
        getattr(estimator(folder), method)(eval_input)
    assert checkpoints.kept_steps(folder) == (40,)
    assert caplog.messages[-2].endswith("model-ckpt-40.safetensors")


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
    """A checkpoint tells all that its bits depend on: this machine's NumPy, BLAS and threads."""
    folder = shutil.copytree(trained, tmp_path / "m")
    manifest = folder / "model-ckpt-30.json"
    plain = json.loads(manifest.read_text())
    assert plain["identity"]["numpy"] == np.__version__
    (blas,) = (info for info in threadpool_info() if "numpy" in info.get("filepath", ""))
    assert plain["identity"]["blas"].endswith(f"{blas['version']} {blas['architecture']}")
    assert plain["identity"]["threads"] == "1"
    change_identity(manifest, blas="openblas 0.3 Prescott")
    estimator(folder).train(train_input, max_steps=31)
    (line,) = warnings(caplog)
    assert line.startswith(
        "model-ckpt-30 was written elsewhere: blas was openblas 0.3 Prescott and"
    )
    assert line.endswith("its last digits are not those of one that was never interrupted")


def test_a_training_in_another_order_of_the_data_is_not_gone_on_with(trained, tmp_path):
    folder = tmp_path / "model_dir"
    shutil.copytree(trained, folder)
    manifest = folder / "model-ckpt-30.json"
    plain = json.loads(manifest.read_text())
    assert plain["identity"]["order"] == ORDER
    change_identity(manifest, order="as in a deck of cards")
    said = r"model-ckpt-30.safetensors: its run shuffled .* order .* than .*warm_start"
    with pytest.raises(UsageError, match=said):
        estimator(folder).train(train_input, max_steps=31)


def test_a_finished_training_says_what_to_change_in_words_of_any_script(trained, caplog):
    """A script of one's own need not have the options of csrun.params."""
    with caplog.at_level("INFO", "csrun"):
        estimator(trained).train(train_input, max_steps=30)
    said = caplog.messages[-1]
    assert said.endswith("nothing to train; raise max_steps or choose another model_dir")
    assert "--" not in said


@pytest.mark.parametrize(
    ("count", "nearest"), [(3, "nearest that do are 2 and 4"), (9, "nearest that does is 8")]
)
def test_minibatches_that_do_not_divide_the_batch_are_refused(tmp_path, count, nearest):
    with pytest.raises(UsageError, match=rf"must divide batch_size 8, got {count}: the {nearest}"):
        estimator(tmp_path, minibatches_in_flight=count).train(train_input, max_steps=1)
    assert not list(tmp_path.glob("model-ckpt-*"))


def test_several_minibatches_are_refused_in_weight_streaming():
    config = CSRunConfig(minibatches_in_flight=2)
    assert minibatches_in_flight(config, ExecutionMode.PIPELINED) == 2
    with pytest.raises(UsageError, match="must be 1 in weight streaming, got 2"):
        minibatches_in_flight(config, ExecutionMode.WEIGHT_STREAMING)


def mean_loss(state):
    logits = logits_of(state).astype(np.float64)
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(LABELS)), LABELS]))


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


def warnings(caplog):
    """What was warned of besides the input function."""
    found = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    return [text for text in found if not text.startswith("Suggestions to improve input_fn")]


def test_data_that_ends_before_the_last_step_is_said(tmp_path, caplog):
    remedy = "call .repeat() in input_fn, or train fewer steps"
    assert estimator(tmp_path).train(five_batches, max_steps=20)["global_step"] == 5
    assert warnings(caplog) == [f"The data set ended at step 5 of 20: {remedy}"]
    caplog.clear()
    with caplog.at_level("INFO", "csrun"):
        estimator(tmp_path).train(five_batches, steps=3)  # goes on after the fifth batch
    assert warnings(caplog) == [f"The data set ended at step 5 of 8: {remedy}"]
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
    assert first.startswith(f"{plan.parent} was of another version of csrun, or damaged: ")
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
        ({"tensors": ("conv",)}, "'conv' is found in no parameter; the model has hidden/kernel, "),
        ({"tensors": ("(",)}, "must be regular expressions, got '('"),
        ({"checkpoint_path": "nowhere/model-ckpt-1"}, "nowhere/model-ckpt-1: no checkpoint"),
    ],
)
def test_a_wrong_warm_start_is_refused(trained, tmp_path, start, message):
    wanted = WarmStart(**{"checkpoint_path": str(trained / "model-ckpt-30"), **start})
    with pytest.raises(CsrunError) as caught:
        estimator(tmp_path, warm_start=wanted).train(train_input, max_steps=1)
    assert message in str(caught.value)


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
    assert f"are not among the events: {folder / 'eval'}: cannot be written: " in notice


def test_anothers_checkpoints_are_evaluated_without_a_trace_in_their_folder(trained, tmp_path):
    theirs = shutil.copytree(trained, tmp_path / "theirs")
    before = sorted(theirs.rglob("*"))
    results = estimator(tmp_path / "mine").evaluate(eval_input, checkpoint_path=theirs)
    assert results["global_step"] == 30
    assert summaries(tmp_path / "mine" / "eval")[30, "loss"].simple_value > 0
    assert sorted(theirs.rglob("*")) == before


def summaries(model_dir):
    """(step, tag) to value of all events."""
    found = {}
    for path in model_dir.glob("events.out.tfevents.*"):
        data, at = path.read_bytes(), 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + length])
            found |= {(event.step, value.tag): value for value in event.summary.value}
            at += 12 + length + 4
    return found


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


def test_predicting_needs_predictions_and_a_checkpoint(trained, tmp_path):
    with pytest.raises(UsageError, match="no checkpoint"):
        estimator(tmp_path).predict(eval_input)
    bare = CerebrasEstimator(lambda *_: CSEstimatorSpec(mode=nn.PREDICT), trained)
    with pytest.raises(UsageError, match="needs predictions to predict, got none"):
        bare.predict(eval_input)


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
