"""Loops over flat arrays of equal length, written as formulas; used for updates of weights.

    v = 0.9 * v + g; w = w - rate * v

The arrays of an update have the length of a range of the store; one loop serves all ranges.
"""

from collections.abc import Mapping
from dataclasses import replace

from xdsl.dialects.builtin import IntegerAttr, i64

from csrun.compiler.graph.array import Array
from csrun.compiler.lair.formula import Formula, formula_loop
from csrun.compiler.lair.kernel_function import KernelFunction
from csrun.compiler.lair.loop import KernelLoop

#: Elements of a kernel of unknown length: more than a tile has.
MANY = 1 << 30
#: Elements of a tile. Measured with AdamW's five arrays on a core with 1 MiB of L2: two thirds take
#: 2 % longer, a third 5 %; each array has more passes than in other loops.
TILE_ELEMENTS = 96 << 10


def flat_loop(name: str, arrays: Mapping[str, str], formula: Formula) -> KernelLoop:
    """Return the loop of a formula, from the arrays' values to the new values of some of them.

    arrays: types by name.
    """
    places = {array: Array(array, (MANY,), dtype) for array, dtype in arrays.items()}
    loop = formula_loop(name, places, places, formula)
    loop.op.properties["tile"] = IntegerAttr(TILE_ELEMENTS, i64)
    text = replace(loop.text, rows=TILE_ELEMENTS + 1, tile=TILE_ELEMENTS)
    return loop.with_function(KernelFunction(name.replace("/", "_"), text, loop.op.numbers, True))
