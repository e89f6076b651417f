"""A transformer's block, tables and norms in compiled programs, against PyTorch."""

import numpy as np
import pytest
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.cirh.ops.shape import PermuteOp
from csrun.compiler import compile_model
from csrun.executable import NumberRange
from csrun.nn.functions import view
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the kernels")
functional = torch.nn.functional

B, T, D, H, V = 3, 5, 8, 2, 11
PRECISIONS = {"float32": 2e-5, "float64": 1e-11}


def heads(x):
    split = view(x, (B, T, H, D // H))
    return split.tracer.emit(PermuteOp, split, dims=(0, 2, 1, 3))


def model(tracer, ids, norm, causal, mask):
    table = nn.Embedding(V, D, padding_idx=3, name="table")
    x = table(ids)
    h = norm(name="norm")(x)
    q, k, v = (heads(nn.Dense(D, name=name)(h)) for name in "qkv")
    attended = nn.scaled_dot_product_attention(q, k, v, mask, causal)
    joined = view(tracer.emit(PermuteOp, attended, dims=(0, 2, 1, 3)), (B, T, D))
    x = x + nn.Dense(D, name="o")(joined)
    return table.attend(norm(name="last")(x))


def compiled(root, mode, precision, norm, causal, masked):
    with Tracer(precision) as tracer:
        ids = tracer.input("ids", (B, T), "int32")
        labels = tracer.input("labels", (B * T,), "int32")
        mask = tracer.input("mask", (B, 1, 1, T), masked) if masked else None
        logits = model(tracer, ids, norm, causal, mask)
        loss = nn.softmax_cross_entropy(view(logits, (B * T, V)), labels)
        train_op = nn.SGD(0.1).minimize(loss)
        module = tracer.finish(RunMode.TRAIN, loss, train_op, [("logits", logits)])
    options = options_of(mode, group_bytes=300)
    return compile_model(module, root, options).executable


def parameters(executable):
    random = np.random.default_rng(7)
    return {
        p.name: (random.standard_normal(p.shape) * 0.5 + p.name.endswith("gamma")).astype(p.dtype)
        for p in executable.plan.parameters
    }


def theirs(parameters, ids, labels, mask, causal, rms):
    p = {n: torch.from_numpy(a).double().requires_grad_() for n, a in parameters.items()}

    def norm(name, x):
        if rms:
            return functional.rms_norm(x, (D,), p[f"{name}/gamma"], 1e-6)
        return functional.layer_norm(x, (D,), p[f"{name}/gamma"], p[f"{name}/beta"], 1e-5)

    def dense(name, x):
        return x @ p[f"{name}/kernel"] + p[f"{name}/bias"]

    x = functional.embedding(ids, p["table/embeddings"], padding_idx=3)
    h = norm("norm", x)
    q, k, v = (dense(name, h).view(B, T, H, D // H).transpose(1, 2) for name in "qkv")
    out = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
    x = x + dense("o", out.transpose(1, 2).reshape(B, T, D))
    logits = norm("last", x) @ p["table/embeddings"].T
    loss = functional.cross_entropy(logits.view(-1, V), labels.long())
    loss.backward()
    return loss.item(), {name: tensor.grad.numpy() for name, tensor in p.items()}


def mask_of(kind, random, precision):
    if kind is None:
        return None
    if kind == "bool":
        mask = random.random((B, 1, 1, T)) > 0.4
        mask[0] = False  # a sample that has nothing to attend to
        return mask
    return random.standard_normal((B, 1, 1, T)).astype(precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mode", ExecutionMode)
@pytest.mark.parametrize(
    ("norm", "causal", "masked"),
    [(nn.LayerNorm, True, None), (nn.RMSNorm, False, "bool"), (nn.LayerNorm, False, "float")],
)
def test_a_step_is_pytorchs(tmp_path, norm, causal, masked, mode, precision):
    dtype = precision if masked == "float" else masked
    executable = compiled(tmp_path, mode, precision, norm, causal, dtype)
    machine = Machine(executable, parameters(executable))
    random = np.random.default_rng(2)
    ids = random.integers(0, V, (B, T)).astype(np.int32)
    ids[0, :3] = 3  # the padding, and one row several times
    labels = random.integers(0, V, B * T).astype(np.int32)
    mask = mask_of(masked, random, precision)
    batch = (ids, labels) if mask is None else (ids, labels, mask)
    own = {name: value.copy() for name, value in machine.state.items()}
    loss, gradients = machine.train(batch)
    tensor = None if mask is None else torch.from_numpy(mask)
    tensor = tensor.double() if masked == "float" else tensor
    expected, slopes = theirs(
        own, torch.from_numpy(ids), torch.from_numpy(labels), tensor, causal, norm is nn.RMSNorm
    )
    assert loss == pytest.approx(expected, rel=PRECISIONS[precision])
    assert gradients.keys() == slopes.keys()
    scale = max(np.abs(slope).max() for slope in slopes.values())
    for name, slope in slopes.items():
        assert np.abs(gradients[name] - slope).max() <= PRECISIONS[precision] * scale, name


def test_the_streamers_know_how_many_vectors_there_are(tmp_path):
    executable = compiled(tmp_path, ExecutionMode.PIPELINED, "float32", nn.RMSNorm, True, None)
    ids, labels = executable.plan.inputs
    assert (ids.numbers, labels.numbers) == ((NumberRange(V),), ())


def test_attentions_result_is_kept_once_for_the_product_and_the_way_back(tmp_path):
    plan = compiled(tmp_path, ExecutionMode.PIPELINED, "float32", nn.RMSNorm, True, None).plan
    lines = (tmp_path / f"tfcs_{plan.checksum}" / "kernels.txt").read_text().splitlines()
    forward, backward = (line for line in lines if ": attention: " in line)
    result = forward.partition(" -> ")[2].partition(", ")[0]
    assert result in backward.partition(" -> ")[0].split(", ")
    assert f"    o: product: {result}, o/kernel -> o/mm" in lines
