"""Philox words in vectors, with the same bits as `csrun.kernels.random`.

A word is in the low half of 64 bits; the high halves of words 1 and 3 are undefined.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import Kind, LaneValue
from csrun.kernels.random import MULTIPLIERS, ROUNDS, WEYL, WORD

COUNTERS = 8  # counters per vector
#: Halves of the seed, as numbers passed with a call.
SEED = ("runtime.seed & 0xFFFFFFFF", "runtime.seed >> 32 & 0xFFFFFFFF")


@dataclass(frozen=True)
class Counters:
    """The four words of counters, each a vector."""

    block: LaneValue
    stream: LaneValue
    sample: LaneValue
    draw: LaneValue


def round_keys(code: Code, seed: Sequence[LaneValue]) -> list[tuple[LaneValue, LaneValue]]:
    """Return the keys of the rounds in all lanes, from the halves of the seed."""
    low, high = (
        [
            code.splat(
                code.op(
                    "and",
                    code.op("add", half, code.constant(number * weyl, half.kind)),
                    code.constant(WORD, half.kind),
                ),
                COUNTERS,
            )
            for number in range(ROUNDS)
        ]
        for half, weyl in zip(seed, WEYL, strict=True)
    )
    return list(zip(low, high, strict=True))


def draw_words(
    code: Code, counters: Counters, keys: Sequence[tuple[LaneValue, LaneValue]]
) -> tuple[LaneValue, LaneValue]:
    """Return words 0 and 1, and words 2 and 3, of each counter, as 64 bits."""
    kind = Kind("int64", COUNTERS)
    word = code.constant(WORD, kind)
    half = code.constant(32, kind)
    even, odd = (counters.block, counters.sample), (counters.stream, counters.draw)
    for key in keys:
        products = [
            # Only low halves matter: one instruction instead of three for 64 bits.
            code.op("mul", code.op("and", x, word), code.constant(multiplier, kind))
            for x, multiplier in zip(even, MULTIPLIERS, strict=True)
        ]
        high = [code.op("lshr", product, half) for product in reversed(products)]
        mixed = [code.op("xor", x, y) for x, y in zip(high, odd, strict=True)]
        even = code.op("xor", mixed[0], key[0]), code.op("xor", mixed[1], key[1])
        odd = products[1], products[0]
    low = [code.op("and", x, word) for x in even]
    first, second = (
        code.op("or", x, code.op("shl", y, half)) for x, y in zip(low, odd, strict=True)
    )
    return first, second
