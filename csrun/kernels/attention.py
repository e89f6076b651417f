"""Scaled dot-product attention over preallocated arrays: one block of scores at a time.

For each sample, head and block of queries the scores are computed, exponentiated and used at once;
what is kept is the result and the logarithm of each row's sum, from which backward computes
the scores again.

Source: Dao et al. 2022, FlashAttention, section 3.1, with whole rows instead of blocks of keys
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from csrun.kernels.random import RunDraw

Array = npt.NDArray[Any]

BLOCK = 128  # queries: with 1,024 keys a block of scores takes 512 KiB, which a core's L2 holds


class Scratch(NamedTuple):
    """Scratch of one block of up to R queries; `unseen` for boolean masks alone.

    Shapes: queries [R, E], scores [R, S], rows [R, 1], unseen bool [R, S]
    """

    queries: Array
    scores: Array
    rows: Array
    unseen: Array | None = None


class BackwardScratch(NamedTuple):
    """Additional scratch of the backward pass.

    Shapes: slopes [R, S], keys [S, E], values [S, F]
    """

    slopes: Array
    keys: Array
    values: Array


def later(rows: int, dtype: str) -> Array:
    """Return what a causal block adds to its queries' scores of their own keys.

    Shapes: -> [rows, rows], -inf where the key comes after the query, else 0
    """
    return np.triu(np.full((rows, rows), -np.inf, dtype), 1)


class _Block(NamedTuple):
    """Block of queries first..last of one sample and head, over the first `keys` keys."""

    outer: tuple[int, int]
    queries: slice
    keys: int


def _blocks(query: Array, keys: int, rows: int, causal: bool) -> Iterator[_Block]:
    samples, heads, length, _ = query.shape
    for sample in range(samples):
        for head in range(heads):
            for first in range(0, length, max(rows, 1)):
                last = min(first + rows, length)
                seen = min(last, keys) if causal else keys
                yield _Block((sample, head), slice(first, last), seen)


def attend(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    out: Array,
    logsumexp: Array,
    scratch: Scratch,
    later: Array | None,
    scale: float,
    dropout: RunDraw | None = None,
) -> None:
    """Attention [B, H, T, E] -> [B, H, T, F], softmax(scale q k^T + mask) v, and its logsumexp.

    A mask of booleans is true where there is something to attend to, another one is added. With
    `later`, query i attends to keys 0..i. A row without anything to attend to is 0. Of a sample
    each head's queries, one after the other, have a run of `dropout`.

    Shapes: query [B, H, T, E], key [B, H, S, E], value [B, H, S, F], mask [B, H, T, S], out
    [B, H, T, F], logsumexp [B, H, T], later [R, R]
    """
    lowest = np.finfo(query.dtype).min
    for outer, queries, keys in _blocks(query, key.shape[2], len(scratch.rows), later is not None):
        count = queries.stop - queries.start
        rows, result = scratch.rows[:count], out[outer][queries]
        if not keys:
            result[...] = 0
            continue
        scores = _scores(query, key, mask, scratch, later, scale, _Block(outer, queries, keys))
        np.maximum.reduce(scores, axis=1, keepdims=True, out=rows)
        if mask is not None:  # of a row that sees nothing
            np.maximum(rows, lowest, out=rows)
        np.subtract(scores, rows, out=scores)
        np.exp(scores, out=scores)
        sums = logsumexp[outer][queries, None]
        np.copyto(sums, rows)
        np.add.reduce(scores, axis=1, keepdims=True, out=rows)
        if mask is not None:
            np.maximum(rows, 1, out=rows)  # what is largest in a row adds 1
        if dropout is not None:
            _drop(scores, dropout, query.shape[2], _Block(outer, queries, keys))
            np.matmul(scores, value[outer][:keys], out=result)
            np.multiply(result, dropout.scale, out=result)
        else:
            np.matmul(scores, value[outer][:keys], out=result)
        np.divide(result, rows, out=result)
        np.log(rows, out=rows)
        np.add(sums, rows, out=sums)


def _scores(
    query: Array,
    key: Array,
    mask: Array | None,
    scratch: Scratch,
    later: Array | None,
    scale: float,
    block: _Block,
) -> Array:
    """Scores [R, E], [S, E] -> [R, S] of a block of queries, -inf where masked."""
    outer, queries, keys = block
    count = queries.stop - queries.start
    scaled, scores = scratch.queries[:count], scratch.scores[:count, :keys]
    np.multiply(query[outer][queries], scale, out=scaled)
    np.matmul(scaled, key[outer][:keys].T, out=scores)
    if mask is not None:
        seen = mask[outer][queries, :keys]
        if scratch.unseen is None:
            np.add(scores, seen, out=scores)
        else:
            unseen = np.logical_not(seen, out=scratch.unseen[:count, :keys])
            np.copyto(scores, -np.inf, where=unseen)
    if later is not None and queries.start < keys:
        own = scores[:, queries.start :]
        np.add(own, later[:count, : own.shape[1]], out=own)
    return scores


def attend_backward(
    grad: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    mask: Array | None,
    query_gradient: Array,
    key_gradient: Array,
    value_gradient: Array,
    scratch: Scratch,
    back: BackwardScratch,
    later: Array | None,
    scale: float,
    dropout: RunDraw | None = None,
) -> None:
    """Gradients of query, key and value [B, H, T or S, E or F], in the shapes of their operands."""
    if not query.shape[2]:
        key_gradient[...] = value_gradient[...] = 0
    for outer, queries, keys in _blocks(query, key.shape[2], len(scratch.rows), later is not None):
        count = queries.stop - queries.start
        rows, slopes = scratch.rows[:count], back.slopes[:count, :keys]
        gradient = grad[outer][queries]
        scores = _scores(query, key, mask, scratch, later, scale, _Block(outer, queries, keys))
        np.subtract(scores, logsumexp[outer][queries, None], out=scores)
        np.exp(scores, out=scores)
        block = _Block(outer, queries, keys)
        kept = None if dropout is None else _drawn(dropout, query.shape[2], block)
        weights = scores
        if kept is not None and dropout is not None:
            weights = np.multiply(scores, kept, out=slopes)
            np.multiply(weights, dropout.scale, out=weights)
        _add(value_gradient[outer], weights.T, gradient, back.values, queries.start == 0)
        np.matmul(gradient, value[outer][:keys].T, out=slopes)
        if kept is not None and dropout is not None:
            np.multiply(slopes, kept, out=slopes)
            np.multiply(slopes, dropout.scale, out=slopes)
        np.einsum("tf,tf->t", gradient, out[outer][queries], out=rows[:, 0])
        np.subtract(slopes, rows, out=slopes)
        np.multiply(slopes, scores, out=slopes)
        _add(key_gradient[outer], slopes.T, scratch.queries[:count], back.keys, queries.start == 0)
        own = query_gradient[outer][queries]
        np.matmul(slopes, key[outer][:keys], out=own)
        np.multiply(own, scale, out=own)


def _drawn(dropout: RunDraw, length: int, block: _Block) -> Array:
    """Draw which weights of a block are kept."""
    (sample, head), queries, keys = block
    run = head * length + queries.start
    return dropout(sample, run, queries.stop - queries.start)[:, :keys]


def _drop(scores: Array, dropout: RunDraw, length: int, block: _Block) -> None:
    np.multiply(scores, _drawn(dropout, length, block), out=scores)


def _add(total: Array, left: Array, right: Array, part: Array, first: bool) -> None:
    """Add a product to the first rows of `total`; the first block's is written."""
    rows = len(left)
    if first:
        np.matmul(left, right, out=total[:rows])
        total[rows:] = 0
        return
    np.matmul(left, right, out=part[:rows])
    np.add(total[:rows], part[:rows], out=total[:rows])
