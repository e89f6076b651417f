"""Masking of padding rows reuses an array that has no other reader."""

import numpy as np
import pytest
from support.steps import Case, one_step

from csrun import nn
from csrun.compiler import validate_model

FEATURES = np.random.default_rng(31).standard_normal((6, 3))
LABELS = np.zeros(6, np.int32)


def last_use(features, labels):
    x = nn.Dense(4, use_bias=False, name="x")(features)
    return nn.sum(nn.sum(x, 1), 0), {}


def read_again(features, labels):
    x = nn.sum(nn.Dense(4, use_bias=False, name="x")(features), 1)
    return nn.sum(x, 0), {"x": x}


@pytest.mark.parametrize(("model", "is_copied"), [(last_use, False), (read_again, True)])
def test_it_is_no_copy_where_it_is_the_last_to_read(tmp_path, model, is_copied):
    case = Case(model, (FEATURES[:4], LABELS[:4]), size=6)
    kernels = validate_model(case.trace()).kernels
    forward = next(k for k in kernels if k.kind == "mask_padding")
    assert (forward.x != forward.out) == is_copied
    whole = Case(model, (FEATURES[:4], LABELS[:4]))
    filled, expected = one_step(case, tmp_path), one_step(whole, tmp_path)
    assert filled.result.loss == pytest.approx(expected.result.loss, rel=1e-13)
    for name, gradient in expected.gradients.items():
        np.testing.assert_allclose(filled.gradients[name], gradient, rtol=1e-12, atol=1e-14)
