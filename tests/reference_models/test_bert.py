"""bert: padding, evaluation, classes and data; test_steps.py covers its steps."""

from itertools import islice
from math import sqrt
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.reference_models import (
    BATCH,
    SMALL_MODELS,
    TEXT,
    VOCABULARY,
    batches,
    changed,
    traced,
)
from support.torch_bert import TorchBert

from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.data import DataError
from csrun.data.formats import write_tokens
from csrun.estimator import CerebrasEstimator, CSRunConfig
from csrun.nn.errors import ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the models")

SMALL = SMALL_MODELS["bert"]
PAD, CLS, SEP, MASK = range(TEXT, VOCABULARY)
STEPS = 6
LAST = f"model-ckpt-{STEPS}.safetensors"


@pytest.fixture
def params(bert: Path, tmp_path: Path) -> msgspec.Struct:
    """Params over a text whose tokens are their positions; half of the samples are short."""
    params = SMALL.params(tmp_path)
    write_tokens(Path(params.train_input.file), [np.arange(9000) % TEXT], TEXT)
    return changed(params, "eval_input", batch_size=BATCH, short_share=0.5)


def test_what_is_padding_changes_nothing(tmp_path, params):
    machine = SMALL.machine(tmp_path, params)
    ((flat, (features, _)),) = batches(params, 1)
    before = machine.evaluate(flat)
    padding = ~features["mask"]
    assert padding.any()
    features["input_ids"][padding], features["segment_ids"][padding] = 3, 1
    assert machine.evaluate(flat) == before


def test_the_tied_table_adds_no_group(tmp_path, params):
    plan = SMALL.machine(tmp_path, params).plan
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


def test_evaluations_and_predictions_are_pytorchs(own_folder, params):
    """77 samples: the last batch has one, and both losses are means over their own labels."""
    from data import eval_input_fn

    write_tokens(params.eval_input.file, [np.arange(1002) % TEXT], TEXT)
    dataset = eval_input_fn(params)
    estimator = trained(own_folder, params)
    results, predictions = estimator.evaluate(eval_input_fn), estimator.predict(eval_input_fn)
    weights = load_file(own_folder / LAST)
    peer = TorchBert(torch, weights, params.model)
    total, samples, right, masked, follows = np.zeros(2), 0, 0, 0, 0
    cross_entropy = torch.nn.functional.cross_entropy
    for flat in dataset:
        features, labels = dataset.nested(
            [a.astype("d") if a.dtype.kind == "f" else a for a in flat]
        )
        rows, found = len(flat[0]), peer.logits(features)
        wanted = [torch.from_numpy(labels[n]).long() for n in ("masked_lm_labels", "next_sentence")]
        for place, (one, of) in enumerate(zip(found, wanted, strict=True)):
            flat_logits = one.reshape(-1, one.shape[-1])
            total[place] += cross_entropy(flat_logits, of.flatten(), reduction="sum").item()
        logits, next_logits = (part.detach().numpy() for part in found)
        wanted, samples = labels["masked_lm_labels"], samples + rows
        masked += np.sum(wanted != IGNORE_INDEX)
        right += np.sum(logits.argmax(-1) == wanted)
        follows += np.sum(next_logits.argmax(-1) == labels["next_sentence"])
        for row, prediction in enumerate(predictions[samples - rows : samples]):
            np.testing.assert_array_equal(prediction["token"], logits[row].argmax(-1))
            assert prediction["next_sentence"] == next_logits[row].argmax()
    assert samples == len(predictions) == 77
    assert results["loss"] == pytest.approx(total[0] / masked + total[1] / samples, rel=1e-9)
    assert results["masked_accuracy"] == pytest.approx(right / masked)
    assert results["next_sentence_accuracy"] == pytest.approx(follows / samples)


def test_a_sequence_longer_than_the_positions_is_refused(params):
    longer = changed(params, "model", sequence_length=25)
    with pytest.raises(ShapeError, match=r"at most 24 positions, got shape \[4, 25, 32"):
        traced(longer)


# The data.


def many(params, count):
    """Features and labels of this many samples, with batches concatenated."""
    from data import train_input_fn

    dataset = train_input_fn(params)
    flat = [np.concatenate(arrays) for arrays in zip(*islice(dataset, count // BATCH), strict=True)]
    return dataset.nested(flat)


def test_a_sample_is_two_segments_and_padding(params):
    features, labels = many(params, 2000)
    found = labels["masked_lm_labels"]
    whole = np.where(found == IGNORE_INDEX, features["input_ids"], found)  # before masking
    lengths = features["mask"].sum(axis=1)
    steps = []
    for row, ids in enumerate(whole):
        end = lengths[row]
        assert features["mask"][row].tolist() == [True] * end + [False] * (16 - end)
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
