"""Scaled dot-product attention over preallocated arrays: one block of scores at a time.

For each sample, head and block of queries the scores are computed, exponentiated and used
immediately. Only the result and each row's logsumexp are saved, from which backward recomputes the
scores.

Source: Dao et al. 2022, FlashAttention, section 3.1, with whole rows instead of blocks of keys
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from csrun.kernels.random import RunDraw

Array = npt.NDArray[Any]

BLOCK = 128  # queries: with 1,024 keys a block of scores takes 512 KiB, within a core's L2


class ScoreBlock(NamedTuple):
    """Scale, causal mask and scratch of the scores of a block of up to R queries.

    later: for causal attention, as returned by `later`.
    unseen: scratch of a boolean mask.

    Shapes: queries [R, E], scores, unseen [R, S], rows [R, 1], later [R, R]
    """

    scale: float
    queries: Array
    scores: Array
    rows: Array
    later: Array | None = None
    unseen: Array | None = None


class AttentionResults(NamedTuple):
    """Results of the forward pass, which the backward pass reads, and the block of scores.

    Shapes: out [B, H, T, F], logsumexp [B, H, T]
    """

    out: Array
    logsumexp: Array
    block: ScoreBlock


class AttentionGradients(NamedTuple):
    """Gradients of the operands, arrays saved by forward, and scratch of a block.

    Shapes: query [B, H, T, E], key [B, H, S, E], value [B, H, S, F], slopes [R, S], key_part [S,
    E], value_part [S, F]
    """

    saved: AttentionResults
    query: Array
    key: Array
    value: Array
    slopes: Array
    key_part: Array
    value_part: Array


def later(rows: int, dtype: str) -> Array:
    """Return the causal mask that a block adds to its queries' scores of their own keys.

    Shapes: -> [rows, rows], -inf where the key follows the query, else 0
    """
    return np.triu(np.full((rows, rows), -np.inf, dtype), 1)


class _Queries(NamedTuple):
    """Block of queries first..last of one sample and head, over the first `keys` keys."""

    outer: tuple[int, int]
    queries: slice
    keys: int


def _blocks(query: Array, key: Array, block: ScoreBlock) -> Iterator[_Queries]:
    (samples, heads, length, _), keys, rows = query.shape, key.shape[2], len(block.rows)
    for sample in range(samples):
        for head in range(heads):
            for first in range(0, length, max(rows, 1)):
                last = min(first + rows, length)
                seen = keys if block.later is None else min(last, keys)
                yield _Queries((sample, head), slice(first, last), seen)


def attend(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    results: AttentionResults,
    dropout: RunDraw | None = None,
) -> None:
    """Attention [B, H, T, E] -> [B, H, T, F]: softmax(scale query key^T + mask) value.

    A boolean mask is true at the keys to attend to; another mask is added. If causal, query i
    attends to keys 0..i. A row whose keys are all masked is 0. Each query of each head of a sample
    has a run of `dropout`, in order.

    Shapes: query [B, H, T, E], key [B, H, S, E], value [B, H, S, F], mask [B, H, T, S]
    """
    out, logsumexp, block = results
    lowest = np.finfo(query.dtype).min
    for part in _blocks(query, key, block):
        outer, queries, keys = part
        rows, result = block.rows[: queries.stop - queries.start], out[outer][queries]
        if not keys:
            result[...] = 0
            continue
        scores = _scores(query, key, mask, block, part)
        np.maximum.reduce(scores, axis=1, keepdims=True, out=rows)
        if mask is not None:  # of a row whose keys are all masked
            np.maximum(rows, lowest, out=rows)
        np.subtract(scores, rows, out=scores)
        np.exp(scores, out=scores)
        sums = logsumexp[outer][queries, None]
        np.copyto(sums, rows)
        np.add.reduce(scores, axis=1, keepdims=True, out=rows)
        if mask is not None:
            np.maximum(rows, 1, out=rows)  # the maximum of a row adds 1
        if dropout is not None:
            np.multiply(scores, _drawn(dropout, query.shape[2], part), out=scores)
            np.matmul(scores, value[outer][:keys], out=result)
            np.multiply(result, dropout.scale, out=result)
        else:
            np.matmul(scores, value[outer][:keys], out=result)
        np.divide(result, rows, out=result)
        np.log(rows, out=rows)
        np.add(sums, rows, out=sums)


def _scores(
    query: Array, key: Array, mask: Array | None, block: ScoreBlock, part: _Queries
) -> Array:
    """Scores [R, E], [S, E] -> [R, S] of a block of queries, -inf where masked."""
    outer, queries, keys = part
    count = queries.stop - queries.start
    scaled, scores = block.queries[:count], block.scores[:count, :keys]
    np.multiply(query[outer][queries], block.scale, out=scaled)
    np.matmul(scaled, key[outer][:keys].T, out=scores)
    if mask is not None:
        seen = mask[outer][queries, :keys]
        if block.unseen is None:
            np.add(scores, seen, out=scores)
        else:
            unseen = np.logical_not(seen, out=block.unseen[:count, :keys])
            np.copyto(scores, -np.inf, where=unseen)
    if block.later is not None and queries.start < keys:
        own = scores[:, queries.start :]
        np.add(own, block.later[:count, : own.shape[1]], out=own)
    return scores


def attend_backward(
    grad: Array,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    gradients: AttentionGradients,
    dropout: RunDraw | None = None,
) -> None:
    """Attention gradients [B, H, T, F] -> [B, H, T or S, E or F], in their operands' shapes.

    Shapes: grad [B, H, T, F], query [B, H, T, E], key [B, H, S, E], value [B, H, S, F],
    mask [B, H, T, S]
    """
    out, logsumexp, block = gradients.saved
    if not query.shape[2]:
        gradients.key[...] = gradients.value[...] = 0
    for part in _blocks(query, key, block):
        outer, queries, keys = part
        count, is_first = queries.stop - queries.start, queries.start == 0
        rows, slopes = block.rows[:count], gradients.slopes[:count, :keys]
        grad_rows = grad[outer][queries]
        scores = _scores(query, key, mask, block, part)
        np.subtract(scores, logsumexp[outer][queries, None], out=scores)
        np.exp(scores, out=scores)
        kept = None if dropout is None else _drawn(dropout, query.shape[2], part)
        weights = scores
        if kept is not None and dropout is not None:
            weights = np.multiply(scores, kept, out=slopes)
            np.multiply(weights, dropout.scale, out=weights)
        _add(gradients.value[outer], weights.T, grad_rows, gradients.value_part, is_first)
        np.matmul(grad_rows, value[outer][:keys].T, out=slopes)
        if kept is not None and dropout is not None:
            np.multiply(slopes, kept, out=slopes)
            np.multiply(slopes, dropout.scale, out=slopes)
        np.einsum("tf,tf->t", grad_rows, out[outer][queries], out=rows[:, 0])
        np.subtract(slopes, rows, out=slopes)
        np.multiply(slopes, scores, out=slopes)
        _add(gradients.key[outer], slopes.T, block.queries[:count], gradients.key_part, is_first)
        own = gradients.query[outer][queries]
        np.matmul(slopes, key[outer][:keys], out=own)
        np.multiply(own, block.scale, out=own)


def _drawn(dropout: RunDraw, length: int, part: _Queries) -> Array:
    """Draw which weights of a block are kept."""
    (sample, head), queries, keys = part
    run = head * length + queries.start
    return dropout(sample, run, queries.stop - queries.start)[:, :keys]


def _add(total: Array, left: Array, right: Array, part: Array, first: bool) -> None:
    """Add a product to the first rows of `total`; the first block's is written."""
    rows = len(left)
    if first:
        np.matmul(left, right, out=total[:rows])
        total[rows:] = 0
        return
    np.matmul(left, right, out=part[:rows])
    np.add(total[:rows], part[:rows], out=total[:rows])
