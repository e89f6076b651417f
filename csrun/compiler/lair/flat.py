"""Loops over flat arrays of one length, written as formulas: what updates of weights are.

    v = 0.9 * v + g; w = w - rate * v

The arrays of an update are as long as a range of the store; its loop is the same for all of them.
"""

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects.builtin import IntegerAttr, i64

from csrun.compiler.graph.array import Array
from csrun.compiler.lair.formula import Formula, formula_loop
from csrun.compiler.lair.loop import KernelLoop
from csrun.compiler.lair.text import LoopText

#: Elements of a kernel before anybody knows how many: more than a tile has.
MANY = 1 << 30
#: Of a tile. Measured with AdamW's five arrays on a core with 1 MiB of L2: two thirds of it take
#: 2 % longer, a third 5 %; there are more passes over each than in other loops.
TILE_ELEMENTS = 96 << 10


def flat_loop(name: str, arrays: Sequence[str], dtype: str, formula: Formula) -> KernelLoop:
    """The loop of a formula: from the values of the arrays to those that some of them take over."""
    places = {array: Array(array, (MANY,), dtype) for array in arrays}
    loop = formula_loop(name, places, places, formula)
    loop.op.properties["tile"] = IntegerAttr(TILE_ELEMENTS, i64)
    return loop


def cut(text: LoopText, elements: int, number: str) -> LoopText:
    """The text of a loop over so many elements; `number` tells it from others of its program."""
    tile = min(TILE_ELEMENTS, elements)
    return replace(text, pieces=f"tiles_{number}", rows=elements, tile=tile)
