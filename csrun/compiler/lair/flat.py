"""Loops over flat arrays of one length, written as formulas: what updates of weights are.

    v = 0.9 * v + g; w = w - rate * v

The arrays of an update are as long as a range of the store; its loop is the same for all of them.
"""

from collections.abc import Mapping
from dataclasses import replace

from xdsl.dialects.builtin import IntegerAttr, i64

from csrun.compiler.graph.array import Array
from csrun.compiler.lair.formula import Formula, formula_loop
from csrun.compiler.lair.kernel_function import KernelFunction
from csrun.compiler.lair.loop import KernelLoop

#: Elements of a kernel before anybody knows how many: more than a tile has.
MANY = 1 << 30
#: Of a tile. Measured with AdamW's five arrays on a core with 1 MiB of L2: two thirds of it take
#: 2 % longer, a third 5 %; there are more passes over each than in other loops.
TILE_ELEMENTS = 96 << 10


def flat_loop(name: str, arrays: Mapping[str, str], formula: Formula) -> KernelLoop:
    """The loop of a formula: from the values of the arrays to those that some of them take over.

    arrays: by name, the type of each
    """
    places = {array: Array(array, (MANY,), dtype) for array, dtype in arrays.items()}
    loop = formula_loop(name, places, places, formula)
    loop.op.properties["tile"] = IntegerAttr(TILE_ELEMENTS, i64)
    text = replace(loop.text, rows=TILE_ELEMENTS + 1, tile=TILE_ELEMENTS)
    return loop.with_function(KernelFunction(name.replace("/", "_"), text, loop.op.numbers, True))
