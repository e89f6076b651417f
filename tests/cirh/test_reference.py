"""Every operator's reference implementation against PyTorch's operator of the same name."""

import numpy as np
import pytest
from support.graphs import evaluate
from support.operators import FORWARD, WITHOUT_GRADIENT

from csrun.cirh.dialect import FAMILIES

CASES = (*FORWARD, *WITHOUT_GRADIENT)
torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the operators")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_computes_what_pytorch_does(case):
    ours = evaluate(case.emit, case.operands)
    theirs = case.peer(torch, *(torch.from_numpy(a) for a in case.operands)).numpy()
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_every_operator_that_computes_has_a_definition_and_a_case():
    computing = {
        op
        for family in FAMILIES
        for op in family.OPS
        if op.get_irdl_definition().operands and op.get_irdl_definition().results
    }
    assert {case.op for case in CASES} == computing
    assert all(op.computes() for op in computing)
