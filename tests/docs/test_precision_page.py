"""docs/precision.md has the compiler's table of widths, and the formats' limits."""

import pytest
from support.pages import CHECKOUT

from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.cirh.dialect import FAMILIES
from csrun.cirh.ops.base import ElementwiseOp
from csrun.compiler.passes.widths import WIDTHS, Width
from csrun.executable.loss_scale import dynamic
from csrun.nn.gradient_options import SCALING_OPTIONS

PAGE = (CHECKOUT / "docs" / "precision.md").read_text()


@pytest.mark.parametrize("width", Width)
def test_the_table_is_that_of_the_compiler(width):
    names = ", ".join(f"`{kind.name.removeprefix('cirh.')}`" for kind in WIDTHS[width])
    assert f"| {width.value} | {names} |" in PAGE


def test_an_operator_has_one_width():
    kinds = [kind for kinds in WIDTHS.values() for kind in kinds]
    assert len(kinds) == len(set(kinds))
    named = {op.name for family in FAMILIES for op in family.OPS}
    assert {kind.name for kind in kinds} <= named


def test_every_operator_that_computes_has_a_width():
    """All but operators that return integers or counts."""
    missing = {
        op.name.removeprefix("cirh.")
        for family in FAMILIES
        for op in family.OPS
        if op.get_irdl_definition().results
        and not issubclass(op, ElementwiseOp)
        and not any(op in kinds for kinds in WIDTHS.values())
    }
    found = {"argmax", "argsort", "sample_count", "valid_samples", "first_sample", "loss_scale"}
    assert missing == found


def test_limits_of_the_formats():
    assert (FLOAT16.largest, cbfloat16().largest) == (65504, 4290772992)
    assert f"{BFLOAT16.largest:.2e}" == "3.39e+38"
    for kind in (FLOAT16, BFLOAT16, cbfloat16()):
        powers = (kind.smallest_normal, kind.smallest, kind.epsilon)
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `mixed_{kind.name}`"))
        for power in powers:
            assert f"2^{power.hex().partition('p')[2]}" in row


def test_keys_and_defaults_of_loss_scaling():
    defaults = dynamic("tensorflow")
    for key in SCALING_OPTIONS.values():
        assert f"`{key}`" in PAGE
    assert (defaults.initial, defaults.minimum, defaults.maximum) == (2**15, 2**-14, 2**15)
    assert (defaults.steps_per_increase, defaults.overflow_tolerance) == (2000, 0.05)
