"""Text cases of the passes: a module, `// -----`, and the result of the pass.

The first line of a case names the pass after `// pass: `. The reference interpreter runs both
modules, whose outputs must be equal.
"""

from pathlib import Path

import numpy as np
import pytest
from support.graphs import run

from csrun.cirh import parse_module, print_module
from csrun.cirh.ops.model import InputOp, StoredOp
from csrun.cirh.types import shape_of, type_of
from csrun.compiler.passes.common import CommonSubexpressions
from csrun.compiler.passes.copies import Copies
from csrun.compiler.passes.dead_code import DEAD_CODE
from csrun.compiler.passes.matrix_sharding import MatrixSharding
from csrun.compiler.passes.mixed_precision import MixedPrecision
from csrun.compiler.passes.rewrite import (
    Canonicalization,
    ConstantFolding,
    DeadCodeElimination,
    Fusion,
    Splitting,
)
from csrun.compiler.passes.rewrite_rules import CANONICAL, FOLDING, FUSION, SPLITTING

CASES = sorted((Path(__file__).parent / "passes").glob("*.mlir"))
PASSES = {
    step.name: step
    for step in (
        Canonicalization(),
        ConstantFolding(),
        CommonSubexpressions(),
        Copies(),
        DeadCodeElimination(),
        Fusion(),
        Splitting(),
        MatrixSharding(most_bytes=64),
        MixedPrecision(),
    )
}


def parts(path):
    """Pass, input module, and expected module of a case."""
    head, _, rest = path.read_text().partition("\n")
    before, _, after = rest.partition("// -----\n")
    return PASSES[head.removeprefix("// pass: ")], before, after


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_the_pass_makes_what_is_expected(path):
    step, before, after = parts(path)
    module = parse_module(before, path.name)
    module.verify()
    assert print_module(module) == before  # the case is written as modules print
    step.apply(module)
    module.verify()
    assert print_module(module) == after


def values_of(text, kind):
    """Seeded positive values of a module's inputs or parameters."""
    random = np.random.default_rng(8)
    found = [op for op in parse_module(text).ops if isinstance(op, kind)]
    return {op.symbol.data: random.uniform(0.5, 2, shape_of(type_of(op.out))) for op in found}


OTHERS = {
    "canonical_dropout_predict",
    "canonical_attention_predict",
    "canonical_batch_norm_eval",  # what training alone does
    "cutting_a_tied_table",  # its parts have names of their own: tests/compiler/test_cutting.py
    "cutting_a_kernel",
    "mixed_integers",  # rounds
    "mixed_integers_and_states",
    "mixed_recorded_update",
}
SAME = [path for path in CASES if path.stem not in OTHERS]


@pytest.mark.parametrize("path", SAME, ids=lambda p: p.stem)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the case without a finite value
def test_what_the_module_computes_is_the_same(path):
    _, before, after = parts(path)
    inputs, parameters = values_of(before, InputOp), values_of(before, StoredOp)
    old, new = (run(parse_module(text), inputs, parameters) for text in (before, after))
    assert old.outputs.keys() == new.outputs.keys()
    for name, value in old.outputs.items():
        np.testing.assert_allclose(new.outputs[name], value, rtol=1e-14)
    for name, value in old.gradients.items():
        np.testing.assert_array_equal(new.gradients[name], value)


def test_every_rule_matches_in_some_case():
    matched = set()
    for path in CASES:
        step, before, _ = parts(path)
        matched |= {line.partition(":")[0] for line in step.apply(parse_module(before)).lines}
    rules = {rule.name for rule in (*CANONICAL, *FOLDING, *FUSION, *SPLITTING, *DEAD_CODE)}
    assert rules <= matched
