"""What nobody reads."""

from xdsl.ir import Operation
from xdsl.rewriter import Rewriter

from csrun.compiler.passes.rules.base import PURE, Rule, Rules


def erase_dead(op: Operation) -> bool:
    """Erase an operator whose results nobody uses."""
    if any(result.first_use for result in op.results):
        return False
    Rewriter.erase_op(op)
    return True


DEAD_CODE: Rules = (Rule("dead-code", PURE, erase_dead),)
