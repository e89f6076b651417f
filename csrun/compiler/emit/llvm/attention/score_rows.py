"""Passes over a block of scores: softmax of each row forward, weights and slopes backward.

A row ends at the last key that causal attention sees; after it, up to the last key of its block,
weights are 0.
"""

import numpy as np

from csrun.compiler.emit.llvm.attention.attention_sizes import AttentionSizes, QueryBlock
from csrun.compiler.emit.llvm.attention.weight_draw import WeightDraw
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_functions.elementary import Float32
from csrun.compiler.emit.llvm.lane_values import LANES, LaneValue, index
from csrun.compiler.emit.llvm.loops.row_sums import add_lanes, largest_lane
from csrun.compiler.emit.llvm.loops.scalars import call_function
from csrun.compiler.emit.llvm.products.matrices import (
    FLOAT,
    FLOATS,
    Matrix,
    each_vector,
    smaller,
)

LOWEST = float(np.finfo(np.float32).min)


class ScoreRows:
    """Rows of scores [R, S] of a block; the mask is that of a pair."""

    def __init__(
        self,
        code: Code,
        sizes: AttentionSizes,
        scores: Matrix,
        mask: Matrix | None,
        draw: WeightDraw | None,
    ) -> None:
        self._code = code
        self._sizes = sizes
        self._scores = scores
        self._mask = mask
        self._draw = draw
        self._math = Float32(code, FLOATS)
        self._zero = code.constant(0.0, FLOATS)

    def write_softmax(self, block: QueryBlock, largest: Matrix, sums: Matrix) -> None:
        """Replace scores by exp(score - row maximum), and write the row sums."""
        code = self._code
        with code.loop(index(0), block.count) as number:
            row, mask, limit = self._row(block, number)
            top = self._largest(row, mask, limit)
            total = self._exponentials(row, number, limit, top)
            if mask is not None:
                # The maximum of a row adds 1; the sum of a row that sees no key is 0.
                one = code.constant(1.0, FLOAT)
                total = code.select(code.compare("olt", total, one), one, total)
            code.store(top, largest.at(code, number).pointer)
            code.store(total, sums.at(code, number).pointer)
            self._clear(row, limit, block.seen)

    def _largest(self, row: Matrix, mask: Matrix | None, limit: LaneValue) -> LaneValue:
        """Return the largest score of a row; the mask is added to the scores.

        NaN may be missed here: the sum of the exponentials then is NaN.
        """
        code = self._code
        least = code.constant(float("-inf"), FLOATS)
        slot = code.slot(least)

        def visit(at: LaneValue, lanes: LaneValue | None) -> None:
            score = row.load(code, at, None)
            if mask is not None:
                score = self._masked(score, mask, at, lanes)
                row.store(code, score, at, None)
            if lanes is not None:
                score = code.select(lanes, score, least)
            old = code.get(slot, FLOATS)
            code.set(slot, code.select(code.compare("ogt", score, old), score, old))

        each_vector(code, limit, visit)
        found = largest_lane(code, code.get(slot, FLOATS))
        if mask is None:
            return found
        return call_function(code, "maximum", [found, code.constant(LOWEST, FLOAT)])

    def _exponentials(
        self, row: Matrix, number: LaneValue, limit: LaneValue, top: LaneValue
    ) -> LaneValue:
        """Store a row's exponentials, 0 for dropped ones; return their sum."""
        code = self._code
        slot, largest = code.slot(self._zero), code.splat(top, LANES)

        def visit(at: LaneValue, lanes: LaneValue | None) -> None:
            weight = self._power(code.op("fsub", row.load(code, at, None), largest))
            if lanes is not None:
                weight = code.select(lanes, weight, self._zero)
            code.set(slot, code.op("fadd", code.get(slot, FLOATS), weight))
            if self._draw is not None:
                weight = code.select(self._draw.keep_mask(number, at), weight, self._zero)
            row.store(code, weight, at, None)

        each_vector(code, limit, visit)
        return add_lanes(code, code.get(slot, FLOATS))

    def write_slopes(
        self, block: QueryBlock, slopes: Matrix, logsumexp: Matrix, averages: Matrix
    ) -> None:
        """Replace scores by weights, and gradients of weights (`slopes`) by gradients of scores.

        averages: each row's sum of weight times gradient.
        """
        code = self._code
        with code.loop(index(0), block.count) as number:
            row, mask, limit = self._row(block, number)
            own = slopes.at(code, number)
            query = code.op("add", block.first, number)
            sums = code.splat(code.load(logsumexp.at(code, query).pointer, FLOAT), LANES)
            average = code.splat(code.load(averages.at(code, number).pointer, FLOAT), LANES)

            def visit(at: LaneValue, lanes: LaneValue | None) -> None:
                score, slope = row.load(code, at, None), own.load(code, at, None)
                if mask is not None:
                    score = self._masked(score, mask, at, lanes)
                weight = self._power(code.op("fsub", score, sums))
                used, slope = self._kept(number, at, weight, slope)
                slope = code.op("fmul", code.op("fsub", slope, average), weight)
                if lanes is not None:
                    used, slope = (code.select(lanes, x, self._zero) for x in (used, slope))
                row.store(code, used, at, None)
                own.store(code, slope, at, None)

            each_vector(code, limit, visit)
            self._clear(row, limit, block.seen)
            self._clear(own, limit, block.seen)

    def _kept(
        self, number: LaneValue, at: LaneValue, weight: LaneValue, slope: LaneValue
    ) -> tuple[LaneValue, LaneValue]:
        """Return weights as used, and their gradients; both are 0 where dropped."""
        code, draw = self._code, self._draw
        if draw is None:
            return weight, slope
        kept, scale = draw.keep_mask(number, at), code.constant(draw.scale, FLOATS)
        used, own = (
            code.select(kept, code.op("fmul", x, scale), self._zero) for x in (weight, slope)
        )
        return used, own

    # Helpers.

    def _row(self, block: QueryBlock, number: LaneValue) -> tuple[Matrix, Matrix | None, LaneValue]:
        """Return a row of scores, the row of the mask, and the number of keys it sees."""
        code, sizes = self._code, self._sizes
        query = code.op("add", block.first, number)
        limit = index(sizes.keys)
        if sizes.is_causal:
            limit = smaller(code, code.op("add", query, index(1)), limit)
        mask = None if self._mask is None else self._mask.at(code, query)
        return self._scores.at(code, number), mask, limit

    def _power(self, x: LaneValue) -> LaneValue:
        """Return e ** x; 0 for masked scores, avoiding slow denormals."""
        if self._mask is None:
            return self._math.exp(x)
        code = self._code
        is_hidden = code.compare("olt", x, code.constant(-104.0, FLOATS))
        power = self._math.exp(code.select(is_hidden, self._zero, x))
        return code.select(is_hidden, self._zero, power)

    def _masked(
        self, score: LaneValue, mask: Matrix, at: LaneValue, lanes: LaneValue | None
    ) -> LaneValue:
        code, own = self._code, mask.load(self._code, at, lanes)
        if mask.dtype == "bool":
            return code.select(own, score, code.constant(float("-inf"), FLOATS))
        return code.op("fadd", score, own)

    def _clear(self, row: Matrix, limit: LaneValue, seen: LaneValue) -> None:
        """Set to zero from the first vector after a row's end."""
        if not self._sizes.is_causal:
            return
        code = self._code
        start = code.op("and", code.op("add", limit, index(LANES - 1)), index(-LANES))
        with code.loop(start, seen, LANES) as at:
            row.store(code, self._zero, at, None)
