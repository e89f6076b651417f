"""Samples of several rows: minibatches, dropout masks and outputs are per sample."""

import re

import msgspec
import numpy as np
import pytest
from support.programs import SYSTEM
from support.steps import Case, one_step

from csrun import nn
from csrun.base.mode import RunMode
from csrun.compiler import CompileError
from csrun.nn.shapes import view

B, T, D, UNITS = 8, 6, 4, 16
COUNTS = (1, 2, 4, 8)


def features(batch=B):
    return np.random.default_rng(3).standard_normal((batch, T, D))


def in_rows(x):
    """Network on [B T, D], and back."""
    batch = x.shape[0]
    rows = nn.Dropout(0.5)(nn.Dense(UNITS)(view(x, (batch * T, D))))
    again = nn.Dropout(0.25)(view(rows, (batch, T, UNITS)))
    out = nn.Dense(3)(view(again, (batch * T, UNITS)))
    return nn.sum(out * out, axis=(0, 1)), {
        "rows": rows,
        "of_sample": view(out, (batch, T, 3)),
        "class": nn.argmax(out),
        "total": nn.sum(out, axis=0),
    }


@pytest.mark.parametrize("minibatches", COUNTS[1:])
def test_minibatches_of_sequences_are_the_whole_batch(tmp_path, minibatches):
    whole = one_step(Case(in_rows, [features()]), tmp_path)
    split = one_step(Case(in_rows, [features()], minibatches), tmp_path)
    assert split.result.loss == pytest.approx(whole.result.loss, rel=1e-12)
    for name, expected in whole.gradients.items():
        np.testing.assert_allclose(split.gradients[name], expected, rtol=1e-9, atol=1e-12)
    for name, expected in whole.result.outputs.items():
        np.testing.assert_allclose(split.result.outputs[name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("minibatches", [1, 4])
def test_no_two_rows_of_a_batch_have_one_mask(tmp_path, minibatches):
    """Two of 48 rows of 16 bits are equal in one of 58 batches; not in this one."""

    def masks(x):
        kept = nn.Dropout(0.5)(nn.exp(nn.Dense(UNITS)(view(x, (x.shape[0] * T, D)))))
        return nn.sum(kept * kept, axis=(0, 1)), {"kept": kept}

    kept = one_step(Case(masks, [features()], minibatches), tmp_path).result.outputs["kept"] > 0
    assert len({row.tobytes() for row in kept}) == B * T
    deviation = np.sqrt(0.25 / kept.size)
    assert abs(kept.mean() - 0.5) < 3 * deviation


def test_a_mask_that_is_of_no_sample_is_the_same_in_all_minibatches(tmp_path):
    def gated(x):
        gate = nn.Dropout(0.5)(nn.exp(_weight(x, UNITS)))
        out = nn.Dense(UNITS)(view(x, (x.shape[0] * T, D))) * gate
        return nn.sum(out * out, axis=(0, 1)), {"out": out}

    whole, split = (
        one_step(Case(gated, [features()], count), tmp_path).result.outputs["out"]
        for count in (1, 4)
    )
    np.testing.assert_allclose(split, whole, rtol=1e-12)
    assert 0 < (whole == 0).all(axis=0).sum() < UNITS


def _weight(x, units):
    with x.tracer.layer("gate", None):
        return x.tracer.parameter("gate", (units,), nn.initializers.ones((units,)))


@pytest.mark.parametrize("minibatches", [1, 4])
def test_each_sample_gets_its_own_part_of_the_outputs(tmp_path, minibatches):
    case = Case(in_rows, [features()], minibatches, run_mode=RunMode.EVAL)
    result = one_step(case, tmp_path).result
    classes, scores = result.outputs["class"], result.outputs["of_sample"]
    assert classes.shape == (B * T,)
    for number in range(B):
        sample = result.of_sample(number)
        np.testing.assert_array_equal(sample["class"], classes[number * T : (number + 1) * T])
        np.testing.assert_array_equal(sample["class"], scores[number].argmax(axis=1))
        assert sample["of_sample"].shape == (T, 3)
        np.testing.assert_array_equal(sample["total"], result.outputs["total"])


@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_batch_that_is_advised_fits_and_a_larger_one_does_not(tmp_path, minibatches):
    """Values of [B T, D] also shrink with the batch."""
    small = msgspec.structs.replace(SYSTEM, usable_cores=4, sram_kb_per_core=48)

    def compiled(batch):
        case = Case(in_rows, [features(batch)], minibatches)
        return case.compile(tmp_path, system=small)

    with pytest.raises(CompileError) as error:
        compiled(256)
    advised = int(re.search(r"lower batch_size to (\d+)", str(error.value))[1])
    compiled(advised)
    with pytest.raises(CompileError):
        compiled(advised + minibatches)
