"""Operators of the table: declarations of classes, values and gradients, against PyTorch."""

from pathlib import Path

import numpy as np
import pytest
from support.graphs import SLOPE, differentiable, evaluate, run
from support.operators import CASES, ELSEWHERE, FORWARD, OTHERS, TIES, WITH_ZERO, ZEROS, normal
from xdsl.irdl import VarOperandDef

from csrun.cirh.dialect import FAMILIES
from csrun.cirh.ops.arithmetic import AddOp, ExpOp, MulOp
from csrun.cirh.ops.attention import AttentionOp
from csrun.cirh.ops.ctc import CtcLossOp
from csrun.cirh.ops.normalization import FusedRmsNormOp
from csrun.cirh.ops.products import MmOp
from csrun.cirh.ops.reductions import AmaxOp, AminOp
from csrun.compiler.errors import CompileError
from csrun.compiler.passes.gradient import GradientPass
from csrun.compiler.passes.learning import LearningAlgorithm

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the operators")

OPERATORS = [op for family in FAMILIES for op in family.OPS]
KINKS, STEP = (TIES, OTHERS, WITH_ZERO, ZEROS), 1e-5


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_operands_that_a_class_names_are_there(op):
    operands = op.get_irdl_definition().operands
    named = {*op.WRITES_OVER, *op.TAKES_TEXT, *op.READS_IN_PLACE}
    assert named <= {name for name, _ in operands}
    several = [isinstance(definition, VarOperandDef) for _, definition in operands]
    assert not any(several[:-1]), "operand_name counts on it"


def test_each_operator_is_in_the_table_or_elsewhere():
    """Operators that compute have a case, those with a gradient have a case with gradients."""
    named = {op.name.removeprefix("cirh."): op for op in OPERATORS}
    definitions = {name: op.get_irdl_definition() for name, op in named.items()}
    computing = {n for n, found in definitions.items() if found.operands and found.results}
    assert {case.op for case in CASES} == {named[name] for name in computing}
    assert all(named[name].computes() for name in computing)
    assert {case.op for case in FORWARD} == {op for op in OPERATORS if op.has_gradient()}
    assert set(ELSEWHERE) == set(named) - computing, "ELSEWHERE of tests/support/operators"
    root = Path(__file__).parents[2]
    assert all((root / path).exists() for path in ELSEWHERE.values())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_computes_what_pytorch_does(case):
    ours = evaluate(case.emit, case.operands)
    theirs = case.peer(torch, *(torch.from_numpy(a) for a in case.operands)).numpy()
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def our_gradients(expression, operands, slope):
    module = differentiable(expression, operands, slope)
    for step in (GradientPass(), LearningAlgorithm()):
        step.apply(module)
        module.verify()
    named = {f"x{i}": a for i, a in enumerate(operands)}
    return run(module, {**named, SLOPE: slope}, named).gradients


def their_gradients(peer, operands, slope):
    tensors = [torch.from_numpy(np.array(a)) for a in operands]
    leaves = {f"x{i}": t.requires_grad_() for i, t in enumerate(tensors) if t.is_floating_point()}
    (peer(torch, *tensors) * torch.from_numpy(np.array(slope))).sum().backward()
    return {name: leaf.grad.numpy() for name, leaf in leaves.items() if leaf.grad is not None}


def check(expression, peer, operands):
    slope = normal(*evaluate(expression, operands).shape)
    slope = np.asarray(slope)
    ours = our_gradients(expression, operands, slope)
    theirs = their_gradients(peer, operands, slope)
    assert ours.keys() == theirs.keys()
    for name, grad in theirs.items():
        assert ours[name].shape == grad.shape
        np.testing.assert_allclose(ours[name], grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", FORWARD, ids=str)
def test_the_rule_gives_autograds_gradient(case):
    check(case.emit, case.peer, case.operands)


def is_smooth(case):
    """Whether the gradient is a derivative, unlike for padding or at ties and jumps.

    The gradient of a CTC loss is that by the log-softmax's operand, as in PyTorch.
    """
    if dict(case.properties).get("padding_idx", -1) != -1:
        return False
    has_ties = any(operand is kink for operand in case.operands for kink in KINKS)
    return (
        not has_ties
        and 0 not in case.operands[0].shape
        and case.op not in (AmaxOp, AminOp, CtcLossOp)
    )


@pytest.mark.parametrize("case", list(filter(is_smooth, FORWARD)), ids=str)
def test_the_gradient_is_the_slope_of_finite_differences(case):
    """Central differences, each operand along a random direction."""
    out = evaluate(case.emit, case.operands)
    slope = normal(*out.shape)
    gradients = our_gradients(case.emit, case.operands, slope)
    for place, operand in enumerate(case.operands):
        if f"x{place}" in gradients:
            direction = normal(*operand.shape)
            sides = []
            for sign in (1, -1):
                moved = list(case.operands)
                moved[place] = operand + sign * STEP * direction
                sides.append((evaluate(case.emit, moved) * slope).sum())
            found = (sides[0] - sides[1]) / (2 * STEP)
            expected = (gradients[f"x{place}"] * direction).sum()
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_gradients_of_all_uses_of_a_value_add_up():
    def expression(builder, x, y):
        shared = builder.emit(ExpOp, builder.emit(MulOp, x, y))
        return builder.emit(
            AddOp, builder.emit(MulOp, shared, shared), builder.emit(MmOp, shared, x)
        )

    def peer(torch, x, y):
        shared = (x * y).exp()
        return shared * shared + shared @ x

    check(expression, peer, (normal(3, 3), normal(3, 3)))


def test_what_has_no_gradient_is_refused():
    q, mask = normal(1, 1, 2, 3), normal(2, 2)

    def under_a_trained_mask(builder, q, mask):
        options = {"is_causal": False, "scale": 1.0}
        return builder.emit_all(AttentionOp, q, q, q, mask, **options)[0]

    with pytest.raises(CompileError, match="a mask must not depend on parameters"):
        our_gradients(under_a_trained_mask, (q, mask), q)

    def with_its_statistic(builder, x, weight):
        out, rrms = builder.emit_all(FusedRmsNormOp, x, weight, eps=1e-5)
        return builder.emit(MulOp, out, rrms)

    with pytest.raises(
        CompileError, match=r"the saved results of cirh\._fused_rms_norm have no gradient"
    ):
        our_gradients(with_its_statistic, (normal(2, 3), normal(3)), normal(2, 3))
