"""Indices that cannot repeat, as those of topk, or the places where a mask is true."""

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import torch

from csrun.pytorch.record.host_operators import DISTINCT
from csrun.pytorch.record.recording import (
    HOST,
    LeafSource,
    RecordedOperator,
    Recording,
    Ref,
)

PUTS = frozenset(
    f"aten.{name}.default" for name in ("index_put", "_unsafe_index_put", "index_copy")
)
_ORDERING = {"aten.topk.default", "aten.sort.default", "aten.sort.stable"}
_COMPARED = f"{HOST}{DISTINCT}"
_PLACES, _NONZERO = f"{HOST}places", f"{HOST}aten.nonzero.default"
_COLUMNS = {"aten.unbind.int", "aten.select.int"}
_SAME = {"aten.detach.default", "aten.alias.default", "aten.clone.default"}
_KEEPS_DISTINCT = {*_SAME, "aten.slice.Tensor"}
_RESHAPES = {*_SAME, "aten.view.default", "aten.squeeze.default", "aten.squeeze.dim"}


def writes_once(recording: Recording, write: RecordedOperator) -> bool:
    """True if a scatter's or index_put's indices are known not to repeat."""
    given = _arguments(write)
    if write.name not in PUTS:
        rank = len(recording.kind(given["index"]).shape)
        return rank > 0 and _distinct_axis(recording, given["index"]) == given["dim"] % rank
    each = given["indices"] if "indices" in given else [given["index"]]
    indices = [index for index in each if index is not None]
    if all(_is_compared(recording, index) for index in indices):
        return True
    is_row = len(indices) == 1 and len(recording.kind(indices[0]).shape) == 1
    if is_row and _distinct_axis(recording, indices[0]) == 0:
        return True
    return _are_places(recording, indices) or _are_crossed(recording, indices)


def _is_compared(recording: Recording, index: Ref) -> bool:
    """True for one of the indices of a write that the host has compared in each step."""
    maker = recording.maker.get(index)
    return maker is not None and maker.name == _COMPARED


def _distinct_axis(recording: Recording, value: Ref) -> int | None:
    """Return the axis along which indices are some of those of sort or topk, if any."""
    maker, made = _maker(recording, value, _KEEPS_DISTINCT)
    if maker is None:
        return None
    rank = len(recording.kind(value).shape)
    if maker.name in _ORDERING and made == maker.results[1] and rank:
        dim: int = _arguments(maker).get("dim", -1)
        return dim % rank
    return None


def _are_places(recording: Recording, indices: Sequence[Ref]) -> bool:
    """True for all axes, in any order, of the places where one mask is true."""
    found = [_place(recording, index) for index in indices]
    masks, axes = {mask for mask, _ in found}, {axis for _, axis in found}
    if None in masks or len(masks) != 1:
        return False
    (mask,) = masks
    assert mask is not None, "found"
    return axes == set(range(len(recording.kind(mask).shape)))


def _place(recording: Recording, index: Ref) -> tuple[Ref | None, int]:
    """Return the mask whose nonzero positions an index holds, and the axis; None if it holds
    none.
    """
    maker, made = _maker(recording, index, _RESHAPES)
    if maker is not None and maker.name == _NONZERO:  # of one axis
        mask = maker.operands[0]
        return (mask if len(recording.kind(mask).shape) == 1 else None), 0
    maker, made = _maker(recording, index, _SAME)
    axis = 0
    if maker is not None and maker.name in _COLUMNS:
        given = _arguments(maker)
        is_column = given.get("dim", 0) % 2 == 1
        axis = given["index"] if "index" in given else maker.results.index(made)
        maker, made = _maker(recording, maker.operands[0], _SAME)
        is_of_mask = maker is not None and maker.name == _NONZERO and is_column
    else:
        is_of_mask = maker is not None and maker.name == _PLACES
        axis = maker.results.index(made) if maker is not None and is_of_mask else 0
    return (maker.operands[0] if maker is not None and is_of_mask else None), axis


def _are_crossed(recording: Recording, indices: Sequence[Ref]) -> bool:
    """True if constants, combined with one index that does not repeat, select no element twice."""
    known = {leaf.value: leaf.tensor for leaf in recording.of(LeafSource.CONSTANT)}
    constants = [known[index] for index in indices if index in known]
    others = [index for index in indices if index not in known]
    if not constants or len(others) != 1 or any(x.dtype == torch.bool for x in constants):
        return False
    (other,) = others
    wide = torch.broadcast_shapes(*(recording.kind(index).shape for index in indices))
    rows = torch.stack([x.expand(wide) for x in constants])
    axis = _distinct_axis(recording, other)
    narrow = recording.kind(other).shape
    if axis is not None and len(narrow) == len(wide) and narrow[axis] == wide[axis]:
        first = rows.select(axis + 1, 0)
        rows = first if (rows == first.unsqueeze(axis + 1)).all() else rows
    columns = rows.flatten(1)
    return bool((columns >= 0).all()) and columns.unique(dim=1).shape[1] == prod(rows.shape[1:])


def _maker(
    recording: Recording, value: Ref, through: Collection[str]
) -> tuple[RecordedOperator | None, Ref]:
    """Return the operator that produces a value's numbers, looking through `through`, and its
    result.
    """
    maker = recording.maker.get(value)
    while maker is not None and maker.name in through:
        value = maker.operands[0]
        maker = recording.maker.get(value)
    return maker, value


def _arguments(op: RecordedOperator) -> Mapping[str, Any]:
    """Return the arguments of an operator by name, without omitted ones."""
    call: Any = op.call
    declared = (argument.name for argument in call._schema.arguments)
    return {**dict(zip(declared, op.arguments, strict=False)), **op.keywords}
