"""gpt2: groups, generation and data; test_steps.py covers its steps."""

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.reference_models import SMALL_MODELS, batches, changed, over, traced, weights_of
from support.torch_gpt2 import TorchGpt2

from csrun.data import DataError
from csrun.nn.errors import ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the models")

SMALL = SMALL_MODELS["gpt2"]


@pytest.fixture
def params(gpt2: Path, tmp_path: Path) -> msgspec.Struct:
    return SMALL.params(tmp_path)


def test_a_tied_table_adds_no_group(tmp_path, params):
    plan = SMALL.machine(tmp_path, params).plan
    assert [p.name for p in plan.parameters if p.name.endswith("embeddings")] == [
        "wte/embeddings",
        "wpe/embeddings",
    ]
    (table,) = [group for group in plan.groups if "wte" in group.layers]
    assert table.layers == ("wte",)
    visits = [visit for visit in plan.visits if table.index in visit.groups]
    assert len(visits) >= 3  # looked up, the output layer, and the way back


@pytest.mark.parametrize("length", [1, 5, 16])
def test_generation_with_a_cache_is_the_compiled_model(tmp_path, params, gpt2, length):
    from generate import Cache, logits_of

    weights = weights_of(SMALL.machine(tmp_path, params, "float32"))
    (((batch, _), _),) = batches(params, 1)
    expected = TorchGpt2(torch, weights, params.model).logits(batch)[0].detach().numpy()
    tokens, cache = batch[0], Cache()
    logits = [logits_of(weights, params.model, tokens[:length], cache)]
    for at in range(length, 16):
        logits.append(logits_of(weights, params.model, tokens[at : at + 1], cache))
    np.testing.assert_allclose(logits, expected[length - 1 :], rtol=0, atol=1e-5)


def test_what_is_drawn_is_of_the_likeliest(gpt2):
    from generate import chosen

    logits, random = np.log([0.5, 0.3, 0.15, 0.05]), np.random.default_rng(0)

    def drawn(**options):
        found = [chosen(logits, random, **options) for _ in range(4000)]
        return np.bincount(found, minlength=4) / 4000

    np.testing.assert_allclose(drawn(), [0.5, 0.3, 0.15, 0.05], atol=0.03)
    np.testing.assert_allclose(drawn(top_k=2), [0.625, 0.375, 0, 0], atol=0.03)
    np.testing.assert_allclose(drawn(top_p=0.79), [0.625, 0.375, 0, 0], atol=0.03)
    np.testing.assert_allclose(drawn(top_p=0.81), [0.526, 0.316, 0.158, 0], atol=0.03)
    square = np.array([0.25, 0.09, 0.0225, 0.0025])
    np.testing.assert_allclose(drawn(temperature=0.5), square / square.sum(), atol=0.03)
    assert drawn(temperature=0.0).tolist() == [1, 0, 0, 0]


def test_a_text_longer_than_the_positions_goes_on(params, gpt2):
    import argparse

    from generate import generated

    random = np.random.default_rng(0)
    weights = {
        name: 0.1 * random.standard_normal(shape) for name, shape in shapes(params.model).items()
    }
    options = argparse.Namespace(tokens=60, seed=1, temperature=1.0, top_k=0, top_p=1.0)
    tokens = list(generated(weights, params.model, np.arange(30), options))
    assert len(tokens) == 60
    assert set(tokens) <= set(range(61))


def shapes(model):
    size, found = model.hidden_size, {}
    for number in range(model.num_hidden_layers):
        for name, inner, outer in (
            ("attn/qkv", size, 3 * size),
            ("attn/out", size, size),
            ("mlp/up", size, 4 * size),
            ("mlp/down", 4 * size, size),
        ):
            found[f"h/{number}/{name}/kernel"] = inner, outer
            found[f"h/{number}/{name}/bias"] = (outer,)
        for norm in ("ln_1", "ln_2"):
            found |= {f"h/{number}/{norm}/{end}": (size,) for end in ("gamma", "beta")}
    found |= {f"ln_f/{end}": (size,) for end in ("gamma", "beta")}
    found["wte/embeddings"] = model.vocabulary, size
    return {**found, "wpe/embeddings": (model.max_position_embeddings, size)}


def test_sizes_that_do_not_fit_are_refused(params):
    with pytest.raises(ShapeError, match=r"wpe: .* at most 24 positions, got shape \[4, 25, 32\]"):
        traced(changed(params, "model", sequence_length=25))
    with pytest.raises(ShapeError, match=r"layer h/0/attn: .* a multiple of num_heads 5"):
        traced(changed(params, "model", num_heads=5))


def prepared(gpt2, out, *arguments):
    command = [sys.executable, str(gpt2 / "prepare_data.py"), "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_texts_become_token_files(gpt2, tmp_path, params):
    from data import eval_input_fn, train_input_fn

    for number in range(20):
        (tmp_path / f"{number:02d}.txt").write_text(f"text {number:02d}, " * 9)
    done = prepared(gpt2, tmp_path / "data", str(tmp_path), "--suffix", ".txt")
    assert done.returncode == 0, done.stderr
    assert "train.bin: 1,458 tokens of 256, from 18 files" in done.stdout
    assert "validation.bin: 162 tokens of 256, from 2 files" in done.stdout
    params = changed(params, "model", vocabulary=256)
    params = over(params, *(tmp_path / "data" / f"{n}.bin" for n in ("train", "validation")))
    tokens, labels = next(iter(eval_input_fn(params)))
    assert bytes(tokens[0].tolist()) == b"text 00, text 00"
    assert bytes(labels[0].tolist()) == b"ext 00, text 00,"
    tokens, _ = next(iter(train_input_fn(params)))
    assert tokens.shape == (4, 16)
    smaller = changed(params, "model", vocabulary=61)
    with pytest.raises(DataError, match="vocabulary of 61, got a file for a vocabulary of 256"):
        next(iter(train_input_fn(smaller)))


def test_what_cannot_be_prepared_is_said(gpt2, tmp_path, params):
    from data import train_input_fn

    done = prepared(gpt2, tmp_path / "data", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "error: 0 files found; 10 are needed, one of them for validation\n"
    done = prepared(gpt2, tmp_path / "data", str(tmp_path), "nowhere")
    assert done.stderr == "error: there is no nowhere\n"
    params = over(params, Path("nowhere.bin"))
    with pytest.raises(DataError, match=r"nowhere.bin: there is no such file; 'python prepare_d"):
        train_input_fn(params)
