"""bert in csrun against the same network in PyTorch: losses, gradients, training; and its data."""

from itertools import islice
from math import sqrt
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.programs import Machine, options_of
from support.torch_bert import DECAYED, TorchBert

from csrun import nn
from csrun.base.mode import IGNORE_INDEX, ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.data import DataError
from csrun.data.formats import write_tokens
from csrun.estimator import CerebrasEstimator, CSRunConfig
from csrun.estimator.trace import trace_model
from csrun.nn.errors import ShapeError
from csrun.params import load

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the models")

TEXT = 57  # ids of the text; the special ones are behind
PAD, CLS, SEP, MASK = range(TEXT, TEXT + 4)
SIZES = {
    "vocabulary": TEXT + 4,
    "max_position_embeddings": 24,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "sequence_length": 16,
}
RATE, CLIP = 1e-2, 0.5
BATCH, STEPS = 4, 6
LAST = f"model-ckpt-{STEPS}.safetensors"


@pytest.fixture
def params(bert: Path, tmp_path: Path) -> msgspec.Struct:
    """Small sizes, half the samples short, and a text in which each token tells its place."""
    from params import Params, SpecialTokens

    file = tmp_path / "text.bin"
    write_tokens(file, [np.arange(9000) % TEXT], TEXT)
    params = load(Params, bert / "configs" / "params.yaml")
    options = {"file": str(file), "batch_size": BATCH, "short_share": 0.5}
    return msgspec.structs.replace(
        params,
        train_input=msgspec.structs.replace(params.train_input, **options),
        eval_input=msgspec.structs.replace(params.eval_input, **options),
        special_tokens=SpecialTokens(pad=PAD, cls=CLS, sep=SEP, mask=MASK),
        model=msgspec.structs.replace(params.model, **SIZES),
        optimizer=nn.AdamW(RATE, weight_decay=DECAYED, clip_norm=CLIP),
    )


def changed(params, section, **values):
    part = msgspec.structs.replace(getattr(params, section), **values)
    return msgspec.structs.replace(params, **{section: part})


def traced(params, precision="float32"):
    from data import train_input_fn
    from model import model_fn

    return trace_model(model_fn, train_input_fn(params), RunMode.TRAIN, params, precision).module


def machine_of(root, params, precision="float64", mode=ExecutionMode.WEIGHT_STREAMING):
    options = options_of(mode, group_bytes=1 << 14)
    executable = compile_model(traced(params, precision), root, options).executable
    random = np.random.default_rng(5)
    weights = {}
    for p in executable.plan.parameters:
        drawn = 0.1 * random.standard_normal(p.shape) + p.name.endswith("gamma")
        weights[p.name] = drawn.astype(p.dtype)
    return Machine(executable, weights)


def batches(params, count, precision="float64"):
    """Flat, as the wafer gets them, and nested."""
    from data import train_input_fn

    dataset = train_input_fn(params)
    for flat in islice(dataset, count):
        typed = [a.astype(precision) if a.dtype.kind == "f" else a for a in flat]
        yield typed, dataset.nested(typed)


def weights_of(machine):
    return {p.name: machine.state[p.name].copy() for p in machine.plan.parameters}


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_step_is_pytorchs(tmp_path, params, precision):
    machine = machine_of(tmp_path, params, precision)
    peer = TorchBert(torch, weights_of(machine), params.model)
    ((flat, nested),) = batches(params, 1, precision)
    assert len({int(row.sum()) for row in nested[0]["mask"]}) > 1  # lengths differ
    loss, slopes = peer.step(nested)
    ours, gradients = machine.train(flat)
    limit = 1e-5 if precision == "float32" else 1e-12
    assert ours == pytest.approx(loss, rel=limit)
    assert gradients.keys() == slopes.keys()
    overall = sqrt(sum(float(np.sum(s.astype("d") ** 2)) for s in slopes.values()))
    for name, slope in slopes.items():
        least = 1e-2 * overall / sqrt(len(slopes))
        distance = np.linalg.norm(gradients[name].astype("d") - slope)
        assert distance <= 10 * limit * max(np.linalg.norm(slope), least), name


def test_a_training_follows_pytorchs(tmp_path, params):
    machine = machine_of(tmp_path, params)
    peer = TorchBert(torch, weights_of(machine), params.model)
    some = list(batches(params, 20))
    ours = [machine.train(flat)[0] for flat, _ in some]
    expected = peer.train([nested for _, nested in some], RATE, CLIP)
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=0)


def test_both_modes_give_the_same_bits(tmp_path, params):
    machines = [machine_of(tmp_path, params, "float32", mode) for mode in ExecutionMode]
    for flat, _ in batches(params, 3, "float32"):
        first, second = (machine.train(flat)[0] for machine in machines)
        assert first == second
    for name, value in machines[0].state.items():
        np.testing.assert_array_equal(value, machines[1].state[name], err_msg=name)


def test_what_is_padding_changes_nothing(tmp_path, params):
    machine = machine_of(tmp_path, params)
    ((flat, (features, _)),) = batches(params, 1)
    before = machine.evaluate(flat)
    padding = features["mask"] == 0
    assert padding.any()
    features["input_ids"][padding], features["segment_ids"][padding] = 3, 1
    assert machine.evaluate(flat) == before


def test_the_tied_table_adds_no_group(tmp_path, params):
    plan = machine_of(tmp_path, params).plan
    assert not [p.name for p in plan.parameters if p.name == "masked_lm/out/kernel"]
    (table,) = [group for group in plan.groups if "embeddings/word" in group.layers]
    visits = [visit for visit in plan.visits if table.index in visit.groups]
    assert len(visits) >= 3  # looked up, the output layer, and the way back


def trained(folder, params, **config):
    from data import train_input_fn
    from model import model_fn

    settings = CSRunConfig(seed=3, save_checkpoints_steps=STEPS, precision="float64", **config)
    estimator = CerebrasEstimator(model_fn, folder, config=settings, params=params)
    estimator.train(train_input_fn, max_steps=STEPS)
    return estimator


def test_minibatches_are_the_whole_batch(own_folder, params):
    some = changed(params, "model", dropout=0.2)
    for name, count in (("whole", 1), ("split", 4)):
        trained(own_folder / name, some, minibatches_in_flight=count)
    whole, split = (load_file(own_folder / name / LAST) for name in ("whole", "split"))
    for name, value in whole.items():
        np.testing.assert_allclose(split[name], value, rtol=1e-9, atol=1e-10, err_msg=name)


def test_evaluations_and_predictions_are_pytorchs(own_folder, params):
    """Of 77 samples, the last batch has one: batches count by their samples."""
    from data import eval_input_fn

    write_tokens(params.eval_input.file, [np.arange(1002) % TEXT], TEXT)
    dataset = eval_input_fn(params)
    estimator = trained(own_folder, params)
    results, predictions = estimator.evaluate(eval_input_fn), estimator.predict(eval_input_fn)
    weights = load_file(own_folder / LAST)
    peer = TorchBert(torch, weights, params.model)
    totals, right, masked, follows = [], 0, 0, 0
    for flat in dataset:
        features, labels = dataset.nested(
            [a.astype("d") if a.dtype.kind == "f" else a for a in flat]
        )
        rows = len(flat[0])
        totals += [peer.loss(features, labels).item()] * rows
        logits, next_logits = (part.detach().numpy() for part in peer.logits(features))
        wanted = labels["masked_lm_labels"]
        masked += np.sum(wanted != IGNORE_INDEX)
        right += np.sum(logits.argmax(-1) == wanted)
        follows += np.sum(next_logits.argmax(-1) == labels["next_sentence"])
        for row, prediction in enumerate(predictions[len(totals) - rows : len(totals)]):
            np.testing.assert_array_equal(prediction["token"], logits[row].argmax(-1))
            assert prediction["next_sentence"] == next_logits[row].argmax()
    assert len(totals) == len(predictions) == 77
    assert results["loss"] == pytest.approx(np.mean(totals), rel=1e-9)
    assert results["masked_accuracy"] == pytest.approx(right / masked)
    assert results["next_sentence_accuracy"] == pytest.approx(follows / len(totals))


def test_a_sequence_longer_than_the_positions_is_refused(params):
    longer = changed(params, "model", sequence_length=25)
    with pytest.raises(ShapeError, match=r"position: .* up to 24 positions, got shape \[4, 25, 32"):
        traced(longer)


# The data.


def many(params, count):
    """Features and labels of so many samples, the arrays of all batches joined."""
    from data import train_input_fn

    dataset = train_input_fn(params)
    flat = [np.concatenate(arrays) for arrays in zip(*islice(dataset, count // BATCH), strict=True)]
    return dataset.nested(flat)


def test_a_sample_is_two_segments_and_padding(params):
    features, labels = many(params, 2000)
    found = labels["masked_lm_labels"]
    whole = np.where(found == IGNORE_INDEX, features["input_ids"], found)  # before masking
    lengths = features["mask"].sum(axis=1).astype(int)
    steps = []
    for row, ids in enumerate(whole):
        end = lengths[row]
        assert features["mask"][row].tolist() == [1] * end + [0] * (16 - end)
        (middle, last) = np.flatnonzero(ids == SEP)
        assert (ids[0], last, set(ids[end:])) == (CLS, end - 1, {PAD} if end < 16 else set())
        a, b = ids[1:middle], ids[middle + 1 : last]
        assert min(len(a), len(b)) > 0
        expected = [0] * (middle + 1) + [1] * len(ids[middle + 1 : end]) + [0] * (16 - end)
        assert features["segment_ids"][row].tolist() == expected
        for part in (a, b):  # each token of this text is the one before it and 1
            assert set(np.diff(part.astype(int)) % TEXT) <= {1}
        steps.append((b[0] - a[-1]) % TEXT == 1)
    follow = labels["next_sentence"] == 0
    assert np.all(np.array(steps)[follow])
    assert np.mean(np.array(steps)[~follow]) < 3 / TEXT  # by chance
    assert abs(np.mean(follow) - 0.5) < 3 * sqrt(0.25 / 2000)
    short = np.mean(lengths < 16)  # half of them have a length of 2 to 13, 13 being the whole one
    assert abs(short - 0.5 * 11 / 12) < 3 * sqrt(0.25 / 2000)


def test_a_share_of_the_tokens_is_masked(params):
    features, labels = many(changed(params, "train_input", short_share=0.0), 2000)
    found = labels["masked_lm_labels"]
    chosen = found != IGNORE_INDEX
    assert np.all(chosen.sum(axis=1) == round(0.15 * 13))
    shown, wanted = features["input_ids"][chosen], found[chosen]
    assert wanted.max() < TEXT
    count = len(shown)
    same = 0.1 + 0.1 / params.model.vocabulary  # any token may be the same one
    masked = 0.8 + 0.1 / params.model.vocabulary
    for share, expected in ((shown == MASK, masked), (shown == wanted, same)):
        assert abs(np.mean(share) - expected) < 3 * sqrt(expected * (1 - expected) / count)
    places = np.bincount(np.flatnonzero(chosen) % 16, minlength=16)
    assert places[0] == places[15] == 0  # [CLS] and the last [SEP]


def test_any_number_of_streamers_makes_the_same_batches(params):
    from data import train_input_fn

    alone = list(islice(train_input_fn(params).batches(), 20))
    for index in range(5):
        part = islice(train_input_fn(params).batches(index, 5), 4)
        for flat, expected in zip(part, alone[index::5], strict=True):
            for one, other in zip(flat, expected, strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_window_is_drawn_anew_by_each_duplicate_and_seed(params):
    from data import pairs_of

    pairs = pairs_of(params.train_input, params)
    windows = len(pairs.windows)
    assert len(pairs.numbers(10)) == 10 * windows
    drawn = [pairs.batch(np.arange(64) + k * windows)[0]["input_ids"] for k in range(2)]
    other = pairs_of(msgspec.structs.replace(params.train_input, seed=2), params)
    drawn.append(other.batch(np.arange(64))[0]["input_ids"])
    for k in range(3):
        assert np.mean(np.any(drawn[k] != drawn[k - 1], axis=1)) > 0.9


def test_what_does_not_fit_is_said(params):
    from data import train_input_fn

    with pytest.raises(DataError, match=r"nowhere.bin: there is no such file; 'python ../gpt2/pre"):
        train_input_fn(changed(params, "train_input", file="nowhere.bin"))
    with pytest.raises(
        DataError, match=r"special_tokens.mask must be below model.vocabulary 60, g"
    ):
        train_input_fn(changed(params, "model", vocabulary=60))
    some = changed(params, "special_tokens", pad=0, cls=1, sep=2, mask=3)
    with pytest.raises(DataError, match="vocabulary of 50, got a file for a vocabulary of 57"):
        train_input_fn(changed(some, "model", vocabulary=50))
