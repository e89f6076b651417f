"""What operators' classes declare of them."""

import pytest
from xdsl.irdl import VarOperandDef

from csrun.cirh.dialect import FAMILIES

OPERATORS = [op for family in FAMILIES for op in family.OPS]


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_operands_that_a_class_names_are_there(op):
    operands = op.get_irdl_definition().operands
    named = {*op.WRITES_OVER, *op.TAKES_TEXT, *op.READS_IN_PLACE}
    assert named <= {name for name, _ in operands}
    several = [isinstance(definition, VarOperandDef) for _, definition in operands]
    assert not any(several[:-1]), "operand_name counts on it"
