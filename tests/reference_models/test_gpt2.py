"""gpt2 in csrun against the same network in PyTorch: losses, gradients, training, generation."""

import subprocess
import sys
from math import sqrt
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.programs import Machine, options_of
from support.torch_gpt2 import DECAYED, TorchGpt2

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.data import DataError
from csrun.nn.errors import ShapeError
from csrun.nn.tracer import Tracer
from csrun.params import load

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the models")

SIZES = {
    "vocabulary": 61,
    "max_position_embeddings": 24,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "sequence_length": 16,
}
RATE, CLIP = 1e-2, 0.5


@pytest.fixture
def params(gpt2: Path) -> msgspec.Struct:
    from params import Params

    return load(Params, gpt2 / "configs" / "params.yaml")


def with_model(params, **sizes):
    model = msgspec.structs.replace(params.model, **{**SIZES, **sizes})
    optimizer = nn.AdamW(RATE, weight_decay=DECAYED, clip_norm=CLIP)
    return msgspec.structs.replace(params, model=model, optimizer=optimizer)


def trace(params, run_mode, precision, batch=3):
    from model import model_fn

    shape = (batch, params.model.sequence_length)
    with Tracer(precision) as tracer:
        tokens = tracer.input("features", shape, "int32")
        labels = None if run_mode is RunMode.PREDICT else tracer.input("labels", shape, "int32")
        spec = model_fn(tokens, labels, run_mode, params)
        outputs = list((spec.predictions or {}).items())
        return tracer.finish(run_mode, spec.loss, spec.train_op, outputs)


def machine_of(root, params, precision="float64", mode=ExecutionMode.WEIGHT_STREAMING, batch=3):
    module = trace(params, RunMode.TRAIN, precision, batch)
    executable = compile_model(module, root, options_of(mode, group_bytes=1 << 14)).executable
    random = np.random.default_rng(5)
    weights = {}
    for p in executable.plan.parameters:
        drawn = 0.1 * random.standard_normal(p.shape) + p.name.endswith("gamma")
        weights[p.name] = drawn.astype(p.dtype)
    return Machine(executable, weights)


def batches(params, count, rows=3):
    random, model = np.random.default_rng(1), params.model
    shape = (rows, model.sequence_length + 1)
    for _ in range(count):
        text = random.integers(0, model.vocabulary, shape).astype(np.int32)
        yield text[:, :-1].copy(), text[:, 1:].copy()


def weights_of(machine):
    return {p.name: machine.state[p.name].copy() for p in machine.plan.parameters}


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_step_is_pytorchs(tmp_path, params, precision):
    params = with_model(params)
    machine = machine_of(tmp_path, params, precision)
    peer = TorchGpt2(torch, weights_of(machine), params.model)
    (batch,) = batches(params, 1)
    loss, slopes = peer.step(*batch)
    ours, gradients = machine.train(batch)
    limit = 1e-5 if precision == "float32" else 1e-12
    assert ours == pytest.approx(loss, rel=limit)
    assert gradients.keys() == slopes.keys()
    overall = sqrt(sum(float(np.sum(s.astype("d") ** 2)) for s in slopes.values()))
    for name, slope in slopes.items():
        least = 1e-2 * overall / sqrt(len(slopes))
        distance = np.linalg.norm(gradients[name].astype("d") - slope)
        assert distance <= 10 * limit * max(np.linalg.norm(slope), least), name


def test_a_training_follows_pytorchs(tmp_path, params):
    params = with_model(params)
    machine = machine_of(tmp_path, params)
    peer = TorchGpt2(torch, weights_of(machine), params.model)
    some = list(batches(params, 20))
    ours = [machine.train(batch)[0] for batch in some]
    np.testing.assert_allclose(ours, peer.train(some, RATE, CLIP), rtol=1e-9, atol=0)


def test_both_modes_give_the_same_bits(tmp_path, params):
    params = with_model(params)
    machines = [machine_of(tmp_path, params, "float32", mode) for mode in ExecutionMode]
    for batch in batches(params, 3):
        first, second = (machine.train(batch)[0] for machine in machines)
        assert first == second
    for name, value in machines[0].state.items():
        np.testing.assert_array_equal(value, machines[1].state[name], err_msg=name)


def test_a_tied_table_adds_no_group(tmp_path, params):
    params = with_model(params)
    plan = machine_of(tmp_path, params).plan
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

    params = with_model(params)
    machine = machine_of(tmp_path, params, "float32")
    weights = weights_of(machine)
    (batch,) = batches(params, 1)
    expected = TorchGpt2(torch, weights, params.model).logits(batch[0])[0].detach().numpy()
    tokens, cache = batch[0][0], Cache()
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

    params = with_model(params)
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
    with pytest.raises(ShapeError, match=r"wpe: .* up to 24 positions, got shape \[3, 25, 32\]"):
        trace(with_model(params, sequence_length=25), RunMode.TRAIN, "float32")
    with pytest.raises(ShapeError, match=r"layer h/0/attn: .* that 5 heads divide"):
        trace(with_model(params, num_heads=5), RunMode.TRAIN, "float32")


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
    params = with_model(params, vocabulary=256)
    path = {name: str(tmp_path / "data" / f"{name}.bin") for name in ("train", "validation")}
    params = msgspec.structs.replace(
        params,
        train_input=msgspec.structs.replace(params.train_input, file=path["train"]),
        eval_input=msgspec.structs.replace(params.eval_input, file=path["validation"]),
    )
    tokens, labels = next(iter(eval_input_fn(params)))
    assert bytes(tokens[0].tolist()) == b"text 00, text 00"
    assert bytes(labels[0].tolist()) == b"ext 00, text 00,"
    tokens, _ = next(iter(train_input_fn(params)))
    assert tokens.shape == (4, 16)
    smaller = with_model(params)
    with pytest.raises(DataError, match="vocabulary of 61, got a file for a vocabulary of 256"):
        next(iter(train_input_fn(smaller)))


def test_what_cannot_be_prepared_is_said(gpt2, tmp_path, params):
    from data import train_input_fn

    done = prepared(gpt2, tmp_path / "data", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "error: 0 files found; 10 are needed, one of them for validation\n"
    train = msgspec.structs.replace(params.train_input, file="nowhere.bin")
    with pytest.raises(DataError, match=r"nowhere.bin: there is no such file; 'python prepare_d"):
        train_input_fn(msgspec.structs.replace(params, train_input=train))
