"""Padding rows of an incomplete batch have no effect: compared with PyTorch on the valid rows."""

import numpy as np
import pytest
from support.programs import ArrayData
from support.steps import Case, one_step, parameters_of

from csrun import nn
from csrun.base.errors import CsrunError
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.cirh.ops.products import MmOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import TransposeOp
from csrun.nn.functions import view
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.wire.messages import StepOrder

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the valid rows")

B, T, D, UNITS = 8, 3, 4, 5
STREAMING, PIPELINED = ExecutionMode.WEIGHT_STREAMING, ExecutionMode.PIPELINED
#: Micro-batches, minibatches of each, modes, and how many of eight samples are valid: of four some
#: parts are of padding alone.
WAYS = [
    (1, 1, PIPELINED, B), (1, 1, PIPELINED, 3), (1, 1, STREAMING, 3), (1, 2, PIPELINED, 3),
    (1, 4, PIPELINED, 5), (4, 1, STREAMING, 5), (2, 2, PIPELINED, 5),
]  # fmt: skip


class Ours:
    """Namespace of csrun in which a case is written."""

    exp, log, sqrt = map(staticmethod, (nn.exp, nn.log, nn.sqrt))
    sum, mean, count, view = map(staticmethod, (nn.sum, nn.mean, nn.sample_count, view))

    def dense(self, x):
        return nn.Dense(UNITS)(x)


class Theirs:
    """Namespace of PyTorch, with parameters by csrun's names."""

    exp, log, sqrt = map(staticmethod, (torch.exp, torch.log, torch.sqrt))

    def __init__(self, parameters):
        self.tensors = {n: torch.tensor(v, requires_grad=True) for n, v in parameters.items()}
        self._layers = iter(n.removesuffix("/kernel") for n in parameters if "kernel" in n)

    def dense(self, x):
        layer = next(self._layers)
        return x @ self.tensors[f"{layer}/kernel"] + self.tensors[f"{layer}/bias"]

    def sum(self, x, axis=-1, keepdims=False):
        return x.sum(axis, keepdims)

    def mean(self, x, axis=-1, keepdims=False):
        return x.mean(axis, keepdims)

    def count(self, x):
        return float(len(x))

    def view(self, x, shape):
        return x.reshape(shape)


def rows_normalized(f, x):
    """Zeros would be 0 / 0 here."""
    h = f.exp(f.dense(x / f.sum(x, axis=-1, keepdims=True)))
    return f.mean(h, axis=(0, 1)), {"h": h}


def logarithm(f, x):
    """The logarithm of zero is infinite."""
    h = f.dense(f.log(x))
    return f.sum(h * h, axis=(0, 1)), {"h": h, "total": f.sum(h, axis=0)}


def norm_without_epsilon(f, x):
    h = f.dense(x - 0.5)
    z = h / f.sqrt(f.sum(h * h, axis=-1, keepdims=True))
    return f.mean(f.sum(z * f.sum(x, axis=-1, keepdims=True), axis=-1), axis=0), {"z": z}


def sums_and_counts(f, x):
    h = f.exp(f.dense(x))
    loss = f.sum(h, axis=(0, 1)) / f.count(x) + f.mean(f.mean(h, axis=-1), axis=0, keepdims=False)
    return loss, {"mean": f.mean(h, axis=0), "shape": f.mean(h, axis=0, keepdims=True)}


def rows_of_sequences(f, x):
    """Samples of [B, D] as [2 B, D / 2], with two rows each."""
    h = f.exp(f.dense(f.view(x, (2 * x.shape[0], D // 2))))
    return f.mean(h, axis=(0, 1)), {"total": f.sum(h, axis=0), "mean": f.mean(h, axis=0)}


def normalized_over_the_batch(f, x):
    """Batch statistics over valid samples, with their gradients."""
    h = f.exp(f.dense(x))
    centred = h - f.mean(h, axis=0, keepdims=True)
    z = centred / f.sqrt(f.mean(centred * centred, axis=0, keepdims=True))
    out = f.dense(z)
    return f.mean(f.log(1.0 + f.exp(out)), axis=(0, 1)), {"z": z}


BY_SAMPLES = (rows_normalized, logarithm, norm_without_epsilon, sums_and_counts, rows_of_sequences)


def features(rows):
    return [np.random.default_rng(12).uniform(0.5, 2.0, (B, D))[:rows]]


def check(model, case, root):
    stepped = one_step(case, root)
    peer = Theirs(parameters_of(case.compile(root).plan))
    loss, outputs = model(peer, torch.tensor(case.batch[0]))
    loss.backward()
    assert stepped.result.loss == pytest.approx(loss.item(), rel=1e-12)
    for name, tensor in peer.tensors.items():
        theirs = tensor.grad.numpy()
        np.testing.assert_allclose(stepped.gradients[name], theirs, rtol=1e-9, atol=1e-12)
    for name, theirs in outputs.items():
        ours = stepped.result.outputs[name]
        np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("micro_batches", "minibatches", "mode", "rows"), WAYS)
@pytest.mark.parametrize("model", BY_SAMPLES)
def test_losses_gradients_and_outputs_are_of_the_valid_rows(
    tmp_path, model, micro_batches, minibatches, mode, rows
):
    given = features(rows)
    case = Case(
        lambda x: model(Ours(), x), given, minibatches, B, mode, micro_batches=micro_batches
    )
    check(model, case, tmp_path)


@pytest.mark.parametrize("rows", [B, 3])
def test_statistics_of_the_batch_are_of_the_valid_rows(tmp_path, rows):
    model = normalized_over_the_batch
    check(model, Case(lambda x: model(Ours(), x), features(rows), 1, B), tmp_path)


def test_a_copy_has_the_mask_of_its_sample(tmp_path):
    """A mask that makes no sample infinite makes no padding infinite."""

    def model(x):
        kept = nn.Dropout(0.5)(nn.exp(nn.Dense(1)(x)))
        return nn.mean(1.0 / kept, axis=(0, 1)), {"kept": kept}

    case = Case(model, features(B), 1, B)
    for step in range(20):
        kept = one_step(case, tmp_path, step).result.outputs["kept"][:, 0] > 0
        if 2 < (alive := int(kept.argmin())) < 6:  # the first one that is not kept
            break
    for minibatches in (1, 4):
        part = one_step(Case(model, features(alive), minibatches, B), tmp_path, step)
        assert np.isfinite(part.result.loss)
        assert all(np.isfinite(gradient).all() for gradient in part.gradients.values())


def summed(x):
    h = nn.Dense(UNITS)(x)
    return h.tracer.emit(SumOp, h * h, dims=(0, 1), keepdim=False), {}


def multiplied(x):
    h = nn.Dense(UNITS)(x)
    return nn.sum(h.tracer.emit(MmOp, h.tracer.emit(TransposeOp, h), h), axis=(0, 1)), {}


def an_output(x):
    h = nn.Dense(UNITS)(x)
    return nn.mean(h * h, axis=(0, 1)), {"best": nn.argmax(h, axis=0)}


@pytest.mark.parametrize(
    ("model", "where"),
    [
        (summed, "layer model: cirh.sum"),
        (multiplied, "layer model: cirh.mm"),
        (an_output, "layer model: cirh.argmax"),
    ],
)
def test_an_incomplete_batch_is_refused_where_padding_would_count(tmp_path, model, where):
    case = Case(model, features(B), run_mode=RunMode.EVAL)
    data = ArrayData([tuple(features(B)), tuple(features(3))])
    machine = CpuMachine(case.compile(tmp_path), data, RunSettings(), 0)
    assert machine.run(StepOrder(0, 1)).done == 1
    with pytest.raises(CsrunError) as caught:
        machine.run(StepOrder(1, 1))
    assert str(caught.value) == (
        f"step 2: the batch has 3 of 8 samples and {where} would count its "
        "padding: use .batch(..., drop_remainder=True)"
    )


def test_a_batch_of_ignored_labels_ends_a_training(tmp_path):
    """The mean over no labels is NaN."""

    def model(x, labels):
        return nn.softmax_cross_entropy(nn.Dense(UNITS)(x), labels), {}

    labels = np.zeros(B, np.int32)
    data = ArrayData([(*features(B), labels), (*features(B), labels - 100)])
    case = Case(model, [*features(B), labels])
    machine = CpuMachine(case.compile(tmp_path), data, RunSettings(), 0)
    done = machine.run(StepOrder(0, 2))
    assert done.done == 1
    assert np.isnan(done.bad_loss)
    assert done.uncounted == 0
