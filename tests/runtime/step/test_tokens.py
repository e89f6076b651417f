"""Losses per token, against PyTorch on the valid rows: means over the labels that count."""

import numpy as np
import pytest
from support.programs import ArrayData
from support.steps import Case, one_step, parameters_of

from csrun import nn
from csrun.base.errors import CsrunError
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.compiler import CompileError
from csrun.compiler.kernels import cross_entropy
from csrun.data.delivery import Delivery
from csrun.nn.functions import view
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.chief.training import step_orders
from csrun.runtime.step.batch_maker import BatchName, count_labels

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the losses")

B, T, D, V = 8, 6, 4, 7
STREAMING, PIPELINED = ExecutionMode.WEIGHT_STREAMING, ExecutionMode.PIPELINED
#: Minibatches and modes, and how many of eight samples are valid: of two and four minibatches some
#: are of padding alone.
WAYS = [(1, PIPELINED, B), (1, STREAMING, 3), (2, PIPELINED, 3), (4, PIPELINED, 5)]


def batch_of(rows, ignored, share=0.4):
    """Ignored labels are unevenly distributed, so that a mean of means would differ."""
    random = np.random.default_rng(8)
    labels = random.integers(0, V, (B, T)).astype(np.int32)
    labels[random.random((B, T)) < np.linspace(0, 2 * share, B)[:, None]] = ignored
    return [random.standard_normal((B, T, D))[:rows], labels[:rows]]


def expected(weights, batch, ignored):
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    logits = torch.tensor(batch[0]) @ tensors["dense/kernel"] + tensors["dense/bias"]
    labels = torch.tensor(batch[1]).long()
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=ignored
    )
    loss.backward()
    return loss.item(), {name: tensor.grad.numpy() for name, tensor in tensors.items()}


def check(case, root, ignored):
    stepped = one_step(case, root)
    weights = parameters_of(case.compile(root).plan)
    loss, gradients = expected(weights, case.batch, ignored)
    assert stepped.result.loss == pytest.approx(loss, rel=1e-12)
    for name, theirs in gradients.items():
        np.testing.assert_allclose(stepped.gradients[name], theirs, rtol=1e-9, atol=1e-12)
    return stepped


@pytest.fixture(params=["few classes", "many classes"])
def classes(request, monkeypatch):
    """NumPy kernels and machine code."""
    if request.param == "many classes":
        monkeypatch.setattr(cross_entropy, "WIDE", 1)


@pytest.mark.usefixtures("classes")
@pytest.mark.parametrize(("minibatches", "mode", "rows"), WAYS)
@pytest.mark.parametrize("ignored", [-100, 5, 255])
def test_a_mean_over_the_labels_that_count(tmp_path, ignored, minibatches, mode, rows):
    def model(x, labels):
        loss = nn.softmax_cross_entropy(nn.Dense(V)(x), labels, ignore_index=ignored)
        return loss, {"loss": loss, "half": loss * 0.5}

    batch = batch_of(rows, ignored)
    case = Case(model, batch, minibatches, B, mode)
    result = check(case, tmp_path, ignored).result
    assert result.count == (batch[1] != ignored).sum() < batch[1].size
    assert result.outputs["loss"] == pytest.approx(result.loss)
    assert result.outputs["half"] == pytest.approx(result.loss / 2)


@pytest.mark.parametrize("minibatches", [1, 4])
def test_logits_and_labels_that_the_model_flattens_itself(tmp_path, minibatches):
    def model(x, labels):
        rows = x.shape[0] * T
        logits = nn.Dense(V)(view(x, (rows, D)))
        return nn.softmax_cross_entropy(logits, view(labels, (rows,))), {}

    check(Case(model, batch_of(5, -100), minibatches, B), tmp_path, -100)


@pytest.mark.parametrize("minibatches", [1, 4])
def test_the_next_token_as_the_label_of_each(tmp_path, minibatches):
    """Labels are a slice, counted and checked as such: the rest may be invalid."""

    def model(x, labels):
        tokens = nn.softmax_cross_entropy(nn.Dense(V)(x)[:, :-1], labels[:, 1:])
        last = nn.softmax_cross_entropy(nn.Dense(V)(x)[:, 2], labels[:, 1:][:, -1])
        return tokens + last, {"tokens": tokens, "last": last}

    batch = batch_of(5, -100)
    batch[1][:, 0] = 77
    case = Case(model, batch, minibatches, B)
    outputs = one_step(case, tmp_path).result.outputs
    plan = case.compile(tmp_path).plan
    weights = parameters_of(plan)
    for name, layer, parts in (
        ("tokens", "dense", [batch[0][:, :-1], batch[1][:, 1:]]),
        ("last", "dense_1", [batch[0][:, 2:3], batch[1][:, -1:]]),
    ):
        own = {f"dense/{what}": weights[f"{layer}/{what}"] for what in ("kernel", "bias")}
        assert outputs[name] == pytest.approx(expected(own, parts, -100)[0], rel=1e-12)
    name = BatchName(0, B, Delivery(tuple(batch), list))
    counts = count_labels(batch, plan.inputs, name)
    assert counts == ((batch[1][:, 1:] != -100).sum(), (batch[1][:, -1] != -100).sum())
    batch[1][2, 4] = V
    with pytest.raises(CsrunError, match=r"row 2 .*: labels must be in 0\.\.6, got 7"):
        count_labels(batch, plan.inputs, name)


@pytest.mark.parametrize("minibatches", [1, 4])
def test_two_losses_each_over_its_own_labels(tmp_path, minibatches):
    """Of the same array: one ignores class 2, and has fewer classes."""

    def model(x, labels):
        first = nn.softmax_cross_entropy(nn.Dense(V)(x), labels)
        second = nn.softmax_cross_entropy(nn.Dense(V + 2)(x), labels, ignore_index=2)
        return first + second, {"first": first, "second": second}

    batch = batch_of(5, 2)
    case = Case(model, batch, minibatches, B)
    result = one_step(case, tmp_path).result
    weights = parameters_of(plan := case.compile(tmp_path).plan)
    assert [(one.classes, one.ignore_index) for one in plan.inputs[1].labels] == [
        (V, -100), (V + 2, 2)
    ]  # fmt: skip
    for name, layer, ignored in (("first", "dense", -100), ("second", "dense_1", 2)):
        own = {f"dense/{what}": weights[f"{layer}/{what}"] for what in ("kernel", "bias")}
        loss, _ = expected(own, batch, ignored)
        assert result.outputs[name] == pytest.approx(loss, rel=1e-12)
    assert result.loss == pytest.approx(result.outputs["first"] + result.outputs["second"])
    assert result.count == 5  # of several kinds of labels it is a mean over samples


@pytest.mark.usefixtures("classes")
def test_labels_that_the_model_computes_are_counted_and_seen_on_the_wafer(tmp_path):
    """They cannot be checked before: an invalid class makes the loss NaN."""

    def model(x, labels):
        return nn.softmax_cross_entropy(nn.Dense(V)(x), labels + labels - labels), {}

    batch = batch_of(5, -100)
    check(Case(model, batch, 1, B), tmp_path, -100)
    with pytest.raises(CompileError, match=r"the loss must be per sample .* in 2 minibatches"):
        one_step(Case(model, batch, 2, B), tmp_path)
    for bad in (V, -1):
        batch[1][4, 2] = bad
        assert np.isnan(one_step(Case(model, batch, 1, B), tmp_path).result.loss)


@pytest.mark.usefixtures("classes")
def test_rows_that_do_not_count_count_nothing_whatever_their_logits_are(tmp_path):
    """Infinite values and NaN: their gradient is zero, as that of padding."""

    def model(x, labels):
        return nn.softmax_cross_entropy(nn.Dense(V)(x), labels), {}

    batch = batch_of(5, -100)
    batch[1][1] = -100
    finite = one_step(Case(model, batch, 1, B), tmp_path)
    batch[0][1, 2] = np.inf
    batch[0][1, 3] = np.nan
    poisoned = one_step(Case(model, batch, 1, B), tmp_path)
    assert poisoned.result.loss == finite.result.loss
    np.testing.assert_array_equal(poisoned.gradients["dense/bias"], finite.gradients["dense/bias"])


def test_an_evaluation_of_labels_that_are_all_ignored_is_of_none(tmp_path):
    def model(x, labels):
        return nn.softmax_cross_entropy(nn.Dense(V)(x), labels), {}

    batch = batch_of(5, -100)
    batch[1][:] = -100
    result = one_step(Case(model, batch, 1, B, run_mode=RunMode.EVAL), tmp_path).result
    assert (result.loss_sum, result.count) == (0, 0)
    assert np.isnan(result.loss)


def as_it_is(x, labels):
    return nn.softmax_cross_entropy(nn.Dense(V)(x), labels), {}


def scaled(x, labels):
    """A scaled loss, which no single kernel covers."""
    return nn.softmax_cross_entropy(nn.Dense(V)(x), labels) * 2.0, {}


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize(("model", "factor"), [(as_it_is, 1), (scaled, 2)])
def test_a_batch_without_labels_counts_nowhere_in_an_evaluation(
    tmp_path, model, factor, minibatches
):
    batches = [batch_of(B, -100) for _ in range(4)]
    batches[1][1][:] = -100
    case = Case(model, batches[0], minibatches, run_mode=RunMode.EVAL)
    machine = CpuMachine(case.compile(tmp_path), ArrayData(batches), RunSettings(), 0)
    for name, array in machine.state.items():
        array[...] = parameters_of(machine.plan)[name]
    results = step_orders.evaluate(machine, 7, None, None, lambda progress: None)
    others = [np.concatenate(arrays) for arrays in zip(batches[0], *batches[2:], strict=True)]
    wanted, _ = expected(parameters_of(machine.plan), others, -100)
    assert results["loss"] == pytest.approx(factor * wanted, rel=1e-12)


def test_an_evaluation_of_two_kinds_of_labels_says_which_has_none(tmp_path):
    """The sum of two means over different numbers of labels is a mean over samples."""

    def model(x, labels):
        first = nn.softmax_cross_entropy(nn.Dense(V)(x), labels)
        return first + nn.softmax_cross_entropy(nn.Dense(V)(x), labels, ignore_index=2), {}

    batch = batch_of(B, -100)
    batch[1][:] = 2
    case = Case(model, batch, run_mode=RunMode.EVAL)
    machine = CpuMachine(case.compile(tmp_path), ArrayData([batch]), RunSettings(), 0)
    why = r"loss is nan at batch 0 .*: all labels of labels equal ignore_index \(2\)"
    with pytest.raises(CsrunError, match=why):
        step_orders.evaluate(machine, 7, None, None, lambda progress: None)


def test_an_evaluation_is_the_mean_over_the_labels_of_all_its_batches(tmp_path):
    """With different numbers of labels, the mean of batch means differs."""

    def model(x, labels):
        return nn.softmax_cross_entropy(nn.Dense(V)(x), labels), {}

    batches = [batch_of(B, -100, share) for share in (0.1, 0.5)]
    batches[1] = [array[:3] for array in batches[1]]
    case = Case(model, batches[0], run_mode=RunMode.EVAL)
    machine = CpuMachine(case.compile(tmp_path), ArrayData(batches), RunSettings(), 0)
    weights = parameters_of(machine.plan)
    for name, array in machine.state.items():
        array[...] = weights[name]
    results = step_orders.evaluate(machine, 7, None, None, lambda progress: None)
    together = [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]
    assert results["loss"] == pytest.approx(expected(weights, together, -100)[0], rel=1e-12)


def transformer(ids, labels):
    """Small transformer: tied weights, both norms, attention, dropout, next-token labels."""
    table = nn.Embedding(V, 8)
    x = nn.PositionEmbedding(T)(table(ids))
    x = x + nn.Dropout(0.25)(nn.MultiHeadAttention(2, is_causal=True)(nn.LayerNorm()(x)))
    x = x + nn.Dense(8)(nn.Dense(16, "gelu")(nn.RMSNorm()(x)))
    loss = nn.softmax_cross_entropy(table.attend(x)[:, :-1], labels[:, 1:])
    return loss + 0.01 * nn.mean(x * x, axis=(0, 1, 2)), {"x": x}


@pytest.mark.parametrize(("minibatches", "mode", "rows"), WAYS[1:])
def test_padding_counts_nowhere_in_a_transformer(tmp_path, minibatches, mode, rows):
    """Compared with a batch of the valid samples only."""
    labels = batch_of(rows, -100)[1]
    batch = [np.random.default_rng(2).integers(0, V, (rows, T)).astype(np.int32), labels]
    alone = one_step(Case(transformer, batch), tmp_path)
    case = Case(transformer, batch, minibatches, B, mode)
    filled_up = one_step(case, tmp_path)
    assert case.compile(tmp_path).plan.counts_padding is None
    assert filled_up.result.loss == pytest.approx(alone.result.loss, rel=1e-12)
    np.testing.assert_allclose(
        filled_up.result.outputs["x"], alone.result.outputs["x"], rtol=1e-9, atol=1e-12
    )
    for name, theirs in alone.gradients.items():
        ours = filled_up.gradients[name]
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("ignored", [True, 1.5, "-100"])
def test_what_is_ignored_is_an_integer(ignored):
    def model(x, labels):
        return nn.softmax_cross_entropy(nn.Dense(V)(x), labels, ignore_index=ignored), {}

    with pytest.raises(nn.errors.TraceError, match=r"test_tokens.py:\d+: .* be an integer, got"):
        Case(model, batch_of(8, -100)).trace()
