"""gptj in csrun against the same network in PyTorch: losses, gradients, training."""

from math import prod, sqrt
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.programs import Machine, options_of
from support.torch_gptj import DECAYED, TorchGptJ

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.cirh.ops.model import ParameterOp
from csrun.cirh.types import shape_of, type_of
from csrun.compiler import compile_model
from csrun.data import DataError
from csrun.data.formats import write_tokens
from csrun.nn.errors import ShapeError
from csrun.nn.tracer import Tracer
from csrun.params import load

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the models")

SIZES = {
    "vocabulary": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "rotary_dim": 6,
    "sequence_length": 16,
}
RATE, CLIP = 1e-2, 0.5


@pytest.fixture
def params(gptj: Path) -> msgspec.Struct:
    from params import Params

    return load(Params, gptj / "configs" / "params_continuous_pretraining.yaml")


def with_model(params, **sizes):
    model = msgspec.structs.replace(params.model, **{**SIZES, **sizes})
    optimizer = nn.AdamW(RATE, weight_decay=DECAYED, clip_norm=CLIP)
    return msgspec.structs.replace(params, model=model, optimizer=optimizer)


def trace(params, run_mode=RunMode.TRAIN, precision="float32", batch=3):
    from model import model_fn

    shape = (batch, params.model.sequence_length)
    with Tracer(precision) as tracer:
        tokens = tracer.input("features", shape, "int32")
        labels = None if run_mode is RunMode.PREDICT else tracer.input("labels", shape, "int32")
        spec = model_fn(tokens, labels, run_mode, params)
        outputs = list((spec.predictions or {}).items())
        return tracer.finish(run_mode, spec.loss, spec.train_op, outputs)


def compiled(root, params, precision="float64", mode=ExecutionMode.WEIGHT_STREAMING):
    module = trace(params, precision=precision)
    return compile_model(module, root, options_of(mode, group_bytes=1 << 14)).executable


def machine_of(root, params, *options):
    executable = compiled(root, params, *options)
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
    peer = TorchGptJ(torch, weights_of(machine), params.model)
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
    peer = TorchGptJ(torch, weights_of(machine), params.model)
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


def test_the_projections_of_attention_have_no_bias(tmp_path, params):
    plan = machine_of(tmp_path, with_model(params)).plan
    biased = {p.name for p in plan.parameters if p.name.endswith("bias")}
    mlp = {f"h/{n}/mlp/{layer}/bias" for n in (0, 1) for layer in ("up", "down")}
    assert biased == {"lm_head/bias", *mlp}


def test_queries_and_keys_are_turned_where_they_lie(tmp_path, params):
    lines = compiled(tmp_path, with_model(params)).program.splitlines()
    turned = [line for line in lines if "rotary.turn_pairs(" in line]
    assert len(turned) == 2 * 2 * 2  # query and key of two blocks, there and back
    copied = [line for line in lines if line.strip().startswith("copyto(") and "_attn_" in line]
    assert len(copied) <= 2  # of each block what attention gives, at most


def test_the_6b_config_has_gptjs_weights(gptj):
    from params import Params

    params = load(Params, gptj / "configs" / "params_6B.yaml")
    assert (params.model.num_heads, params.model.rotary_dim) == (16, 64)
    parameters = [op for op in trace(params, batch=1).ops if isinstance(op, ParameterOp)]
    sizes = [prod(shape_of(type_of(parameter.out))) for parameter in parameters]
    assert sum(sizes) == 6_050_882_784  # as transformers counts them


def test_a_prediction_is_the_likeliest_token(params):
    module = trace(with_model(params), RunMode.PREDICT)
    assert [str(op.name) for op in module.ops][-1] == "cirh.output"


def test_sizes_that_do_not_fit_are_refused(params):
    with pytest.raises(ShapeError, match=r"model.py:\d+: rotary_embedding: .* 2..8, .* got 10"):
        trace(with_model(params, rotary_dim=10))
    with pytest.raises(ShapeError, match=r"reshape: \[3, 16, 32\] cannot be .* \[3, 16, 5, -1\]"):
        trace(with_model(params, num_heads=5))


def test_texts_become_batches(params, tmp_path):
    from data import eval_input_fn, train_input_fn

    path = str(tmp_path / "text.bin")
    write_tokens(Path(path), [np.arange(100) % 50], 50)
    params = with_model(params, vocabulary=50)
    params = msgspec.structs.replace(
        params,
        train_input=msgspec.structs.replace(params.train_input, file=path),
        eval_input=msgspec.structs.replace(params.eval_input, file=path),
    )
    tokens, labels = next(iter(eval_input_fn(params)))
    np.testing.assert_array_equal(tokens, np.arange(64).reshape(4, 16) % 50)
    np.testing.assert_array_equal(labels, np.arange(1, 65).reshape(4, 16) % 50)
    tokens, labels = next(iter(train_input_fn(params)))
    assert (tokens.shape, tokens.dtype) == ((4, 16), "int32")
    np.testing.assert_array_equal((tokens + 1) % 50, labels)
    with pytest.raises(DataError, match="vocabulary of 40, got a file for a vocabulary of 50"):
        next(iter(train_input_fn(with_model(params, vocabulary=40))))
    train = msgspec.structs.replace(params.train_input, file="nowhere.bin")
    with pytest.raises(DataError, match=r"nowhere.bin: .* 'python ../gpt2/prepare_data.py --out d"):
        train_input_fn(msgspec.structs.replace(params, train_input=train))
