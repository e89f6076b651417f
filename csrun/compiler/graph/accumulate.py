"""Accumulation of the gradient of a weight with several uses, in place in the store.

Reverse mode adds the gradients of all uses. If their kernels can accumulate, none of the gradients
needs a separate array: the first one is written to the parameter's gradient, and the others are
added to it in order, a matrix product by tiles of rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.arithmetic import AddOp
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.shape import VIEWS
from csrun.cirh.types import type_of
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.view_ops import undone

Name = Callable[[Array], str]

# rows of a product before it is added: half as many double the time of BLAS
TILE_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class Sum:
    """Values to be added, each with its location in the sum; and the additions."""

    terms: tuple[tuple[SSAValue, Array], ...]
    additions: tuple[Operation, ...] = ()


def sum_at(place: Array, value: SSAValue) -> Sum | None:
    """Return the summands of a value, if kernels can accumulate them and nothing else reads it."""
    owner = value.owner
    if value.uses.get_length() != 1:
        return None
    if isinstance(owner, CirhOp) and owner.ADDS_UP:
        return Sum(((value, place),))
    if isinstance(owner, VIEWS):
        below = undone(owner, place)
        return None if below is None else sum_at(below, owner.x)
    if not isinstance(owner, AddOp) or {type_of(o) for o in owner.operands} != {type_of(value)}:
        return None
    left, right = (sum_at(place, operand) for operand in owner.operands)
    if left is None or right is None:
        return None
    additions = (*left.additions, *right.additions, owner)
    return Sum((*left.terms, *right.terms), additions)


def tile_of(target: Array, layer: str) -> Array:
    """Return the scratch of `add_product`."""
    rows, columns = _row_major(target).shape
    tile = min(rows, max(TILE_ELEMENTS // max(columns, 1), 1))
    return Array(f"{layer}/{target.name}/tile", (tile, columns), target.dtype)


def add_product(a: Array, b: Array, target: Array, tile: Array, name: Name) -> list[str]:
    """Return the lines for target += a b, in the order of the target's rows in memory.

    Shapes: a [M, K], b [K, N] -> target [M, N]; tile [rows, N], or of the transpose's
    """
    if not target.is_contiguous:  # the transpose of a b is b's times a's
        a, b, target = (x.permuted((1, 0)) for x in (b, a, target))
    rows, step = target.shape[0], tile.shape[0]
    left, right, out, part = map(name, (a, b, target, tile))
    if rows <= step:
        return [f"matmul({left}, {right}, out={part})", f"add({out}, {part}, out={out})"]
    here = f"[at:at + {step}]"
    return [
        f"for at in range(0, {rows}, {step}):",
        f"    matmul({left}{here}, {right}, out={part}[:{rows} - at])",
        f"    add({out}{here}, {part}[:{rows} - at], out={out}{here})",
    ]


def _row_major(target: Array) -> Array:
    return target if target.is_contiguous else target.permuted((1, 0))
