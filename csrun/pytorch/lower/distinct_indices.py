"""Indices that cannot repeat along an axis, as those of topk do not."""

from collections.abc import Mapping
from typing import Any

from csrun.pytorch.record.recording import RecordedOperator, Recording

_ORDERING = {"aten.topk.default", "aten.sort.default", "aten.sort.stable"}
_KEEPS_DISTINCT = {
    "aten.slice.Tensor",
    "aten.detach.default",
    "aten.alias.default",
    "aten.clone.default",
}


def writes_once(recording: Recording, scatter: RecordedOperator) -> bool:
    """True if a scatter's indices are those of sort or topk along its axis, or some of them."""
    given = _arguments(scatter)
    value, dim = given["index"], given["dim"]
    maker = recording.maker.get(value)
    while maker is not None and maker.name in _KEEPS_DISTINCT:
        value = maker.operands[0]
        maker = recording.maker.get(value)
    if maker is None or maker.name not in _ORDERING or maker.results[1] != value:
        return False
    rank = len(recording.kind(value).shape)
    return rank > 0 and dim % rank == _arguments(maker).get("dim", -1) % rank


def _arguments(op: RecordedOperator) -> Mapping[str, Any]:
    """Return the arguments of an operator by name; of those left out nothing."""
    call: Any = op.call
    declared = (argument.name for argument in call._schema.arguments)
    return {**dict(zip(declared, op.arguments, strict=False)), **op.keywords}
