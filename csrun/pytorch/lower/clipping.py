"""Patterns of torch.nn.utils' clipping in a recording, a property of updates in CIRH."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from csrun.cirh.ops.learning import Clipping
from csrun.pytorch.record.recording import RecordedOperator, Recording, Ref

NORM, STACK = "aten.linalg_vector_norm.default", "aten.stack.default"
ADD, INVERT = "aten.add.Tensor", "aten.reciprocal.default"
MULTIPLY, CLAMP = "aten.mul.Tensor", "aten.clamp.default"
CLAMP_MIN, CLAMP_MAX = "aten.clamp_min.default", "aten.clamp_max.default"
LONGEST = sys.float_info.max
EPSILON = 1e-6  # added by PyTorch to the norm before the division


@dataclass(frozen=True)
class RecordedClipping:
    """Limits of the gradients, and the unclipped gradients by parameter.

    total: their global norm, if that is limited.
    """

    limits: Clipping
    gradients: Mapping[str, Ref]
    total: Ref | None = None


def clipping_of(recording: Recording, trained: Sequence[str]) -> RecordedClipping | None:
    """Return the clipping of all trained parameters' gradients, if it is their last edit.

    None otherwise: the edits are then lowered as plain arithmetic.
    """
    if not trained or set(trained) != set(recording.gradients):
        return None
    return _clipping_by_norm(recording) or _clipping_by_value(recording)


def _clipping_by_norm(recording: Recording) -> RecordedClipping | None:
    """Return the clipping by the global norm, as clip_grad_norm_ does it."""
    before: dict[str, Ref] = {}
    factors: set[Ref] = set()
    for name, value in recording.gradients.items():
        op = _maker_named(recording, value, MULTIPLY)
        if op is None or not isinstance(op.arguments[1], Ref):
            return None
        before[name], factor = op.arguments
        factors.add(factor)
    if len(factors) != 1:
        return None
    found = _match_limit(recording, factors.pop(), set(before.values()))
    if found is None:
        return None
    norm, total = found
    return RecordedClipping(Clipping(clip_norm=norm), before, total)


def _clipping_by_value(recording: Recording) -> RecordedClipping | None:
    """Return the clipping of each value to -c and c, as clip_grad_value_ does it."""
    before: dict[str, Ref] = {}
    limits = set()
    for name, value in recording.gradients.items():
        clamp = _clamp_by(recording, value)
        if clamp is None or value == recording.first_gradients.get(name):
            return None
        low, high = clamp.bounds
        if not isinstance(high, int | float) or low != -high or not 0 < high <= LONGEST:
            return None
        before[name] = clamp.x
        limits.add(float(high))
    if len(limits) != 1:
        return None
    return RecordedClipping(Clipping(clip_value=limits.pop()), before)


def clipped_norm_of(recording: Recording) -> Ref | None:
    """Return the global norm by which all gradients are clipped, if they are."""
    clipping = clipping_of(recording, list(recording.gradients))
    return None if clipping is None else clipping.total


def is_of_sum(recording: Recording, trained: Sequence[str]) -> bool:
    """True if the update uses the gradients of `backward()`, at most clipped.

    Such gradients may first be accumulated over batches.
    """
    first = recording.first_gradients
    clipping = clipping_of(recording, trained)
    found = recording.gradients if clipping is None else clipping.gradients
    return all(found.get(name) == first[name] for name in first if name in trained)


def _match_limit(recording: Recording, factor: Ref, of: set[Ref]) -> tuple[float, Ref] | None:
    """Return c and the norm of min(c / (norm + 1e-6), 1), if one of these values has that form."""
    clamp = _maker_named(recording, factor, CLAMP)
    if clamp is None or _bounds(clamp) != (None, 1.0):
        return None
    scaled = _maker_named(recording, clamp.arguments[0], MULTIPLY)
    inverse = scaled and _maker_named(recording, scaled.arguments[0], INVERT)
    shifted = inverse and _maker_named(recording, inverse.arguments[0], ADD)
    if not scaled or not shifted or shifted.arguments[1:] != (EPSILON,):
        return None
    total = _norm(recording, shifted.arguments[0])
    stack = total and _maker_named(recording, total.arguments[0], STACK)
    if not stack or isinstance(scaled.arguments[1], Ref):
        return None
    norms = [_norm(recording, value) for value in stack.arguments[0]]
    if None in norms or {op.arguments[0] for op in norms if op} != of:
        return None
    limit = float(scaled.arguments[1])
    # A loop that only reads the norm clips to infinity, which a plan cannot store.
    return (min(limit, LONGEST), shifted.arguments[0]) if limit > 0 else None


@dataclass(frozen=True)
class _Clamp:
    """Clamped value, and its lower and upper bound."""

    x: Ref
    bounds: tuple[Any, Any]


def _clamp_by(recording: Recording, value: Ref) -> _Clamp | None:
    """Return the clamp that computes a value: one operator, or two of `foreach`."""
    op = _maker_named(recording, value, CLAMP)
    if op is not None:
        return _Clamp(op.arguments[0], _bounds(op))
    last = _maker_named(recording, value, CLAMP_MAX)
    first = last and _maker_named(recording, last.arguments[0], CLAMP_MIN)
    if not last or not first:
        return None
    low = first.keywords.get("min", *first.arguments[1:])
    return _Clamp(first.arguments[0], (low, last.keywords.get("max", *last.arguments[1:])))


def _bounds(clamp: RecordedOperator) -> tuple[Any, Any]:
    low, high = (*clamp.arguments[1:], None, None)[:2]
    return clamp.keywords.get("min", low), clamp.keywords.get("max", high)


def _norm(recording: Recording, value: Any) -> RecordedOperator | None:
    """Return the operator that computes a value, if it is the Euclidean norm of a whole tensor."""
    op = _maker_named(recording, value, NORM)
    plain = op is not None and tuple(op.arguments[1:]) in ((), (2,), (2.0,)) and not op.keywords
    return op if plain else None


def _maker_named(recording: Recording, value: Any, name: str) -> RecordedOperator | None:
    op = recording.maker.get(value) if isinstance(value, Ref) else None
    return op if op is not None and op.name == name else None
