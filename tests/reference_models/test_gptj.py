"""gptj: weights, program and data; test_steps.py covers its steps."""

import re
from math import prod
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.reference_models import SMALL_MODELS, changed, over, small_groups, traced

from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.data import DataError
from csrun.data.formats import write_tokens
from csrun.estimator.model_trace import trace_model
from csrun.nn.errors import ShapeError
from csrun.params import load

SMALL = SMALL_MODELS["gptj"]


@pytest.fixture
def params(gptj: Path, tmp_path: Path) -> msgspec.Struct:
    return SMALL.params(tmp_path)


def test_the_projections_of_attention_have_no_bias(tmp_path, params):
    plan = SMALL.machine(tmp_path, params).plan
    biased = {p.name for p in plan.parameters if p.name.endswith("bias")}
    mlp = {f"h/{n}/mlp/{layer}/bias" for n in (0, 1) for layer in ("up", "down")}
    assert biased == {"lm_head/bias", *mlp}


def test_queries_and_keys_are_turned_where_they_lie(tmp_path, params):
    options = small_groups(ExecutionMode.WEIGHT_STREAMING)
    lines = compile_model(traced(params), tmp_path, options).executable.program.splitlines()
    turned = [line for line in lines if re.search(r"= rotary\w*_[0-9a-f]{8}\(", line)]
    assert len(turned) == 2 * 2 * 2  # query and key of two blocks, there and back
    copied = [line for line in lines if line.strip().startswith("copyto(") and "_attn_" in line]
    assert len(copied) <= 2  # of each block what attention gives, at most


def test_the_6b_config_has_gptjs_weights(gptj):
    from params import Params

    params = load(Params, gptj / "configs" / "params_6B.yaml")
    assert (params.model.num_heads, params.model.rotary_dim) == (16, 64)
    weights = predicting(params).weights()
    assert sum(prod(array.shape) for array in weights.values()) == 6_050_882_784  # transformers'


def predicting(params):
    from convert import example
    from model import model_fn

    return trace_model(model_fn, example(params), RunMode.PREDICT, params, "float32")


def test_a_prediction_is_the_likeliest_token(params):
    assert [str(op.name) for op in predicting(params).module.ops][-1] == "cirh.output"


def test_sizes_that_do_not_fit_are_refused(params):
    with pytest.raises(ShapeError, match=r"model.py:\d+: rotary_embedding: .* 2..8, .* got 10"):
        traced(changed(params, "model", rotary_dim=10))
    with pytest.raises(ShapeError, match=r"shape \[4, 16, 32\] cannot be .* \[4, 16, 5, -1\]"):
        traced(changed(params, "model", num_heads=5))


def test_texts_become_batches(params, tmp_path):
    from data import eval_input_fn, train_input_fn

    write_tokens(tmp_path / "fifty.bin", [np.arange(100) % 50], 50)
    params = over(changed(params, "model", vocabulary=50), tmp_path / "fifty.bin")
    tokens, labels = next(iter(eval_input_fn(params)))
    np.testing.assert_array_equal(tokens, np.arange(64).reshape(4, 16) % 50)
    np.testing.assert_array_equal(labels, np.arange(1, 65).reshape(4, 16) % 50)
    tokens, labels = next(iter(train_input_fn(params)))
    assert (tokens.shape, tokens.dtype) == ((4, 16), "int32")
    np.testing.assert_array_equal((tokens + 1) % 50, labels)
    with pytest.raises(DataError, match="vocabulary of 40, got a file for a vocabulary of 50"):
        next(iter(train_input_fn(changed(params, "model", vocabulary=40))))
    with pytest.raises(DataError, match=r"nowhere.bin: .* 'python ../gpt2/prepare_data.py --out d"):
        train_input_fn(over(params, Path("nowhere.bin")))
