"""Pattern of torch.nn.utils.clip_grad_norm_ in a recording, a property of updates in CIRH."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from csrun.pytorch.record.recording import RecordedOperator, Recording, Ref

NORM, STACK = "aten.linalg_vector_norm.default", "aten.stack.default"
ADD, INVERT = "aten.add.Tensor", "aten.reciprocal.default"
MULTIPLY, CLAMP = "aten.mul.Tensor", "aten.clamp.default"
LONGEST = sys.float_info.max
EPSILON = 1e-6  # added by PyTorch to the norm before the division


@dataclass(frozen=True)
class RecordedClipping:
    """Maximum global norm of the gradients, their norm, and the unscaled ones by parameter."""

    norm: float
    total: Ref
    gradients: Mapping[str, Ref]


def clipping_of(recording: Recording, trained: Sequence[str]) -> RecordedClipping | None:
    """Return the clipping of all trained parameters' gradients, if that is their last edit.

    None where it is not: then the edits are lowered as plain arithmetic.
    """
    before: dict[str, Ref] = {}
    factors: set[Ref] = set()
    if not trained or set(trained) != set(recording.gradients):
        return None
    for name in trained:
        op = recording.maker.get(recording.gradients[name])
        if op is None or op.name != MULTIPLY or not isinstance(op.arguments[1], Ref):
            return None
        before[name], factor = op.arguments
        factors.add(factor)
    if len(factors) != 1:
        return None
    found = _match_limit(recording, factors.pop(), set(before.values()))
    return None if found is None else RecordedClipping(*found, before)


def is_of_sum(recording: Recording, trained: Sequence[str]) -> bool:
    """True if the update takes the gradients of `backward()`, at most clipped by their norm.

    Such gradients may be accumulated over batches first.
    """
    first = recording.first_gradients
    clipping = clipping_of(recording, trained)
    found = recording.gradients if clipping is None else clipping.gradients
    return all(found.get(name) == first[name] for name in first if name in trained)


def _match_limit(recording: Recording, factor: Ref, of: set[Ref]) -> tuple[float, Ref] | None:
    """Return c and the norm of min(c / (norm + 1e-6), 1), if that is the one of these values."""
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
    # A loop that only reads the norm clips to infinity, which a plan cannot hold.
    return (min(limit, LONGEST), shifted.arguments[0]) if limit > 0 else None


def _bounds(clamp: RecordedOperator) -> tuple[Any, Any]:
    low, high = (*clamp.arguments[1:], None, None)[:2]
    return clamp.keywords.get("min", low), clamp.keywords.get("max", high)


def _norm(recording: Recording, value: Any) -> RecordedOperator | None:
    """Return the operator that makes a value, if it is the Euclidean norm of a whole tensor."""
    op = _maker_named(recording, value, NORM)
    plain = op is not None and tuple(op.arguments[1:]) in ((), (2,), (2.0,)) and not op.keywords
    return op if plain else None


def _maker_named(recording: Recording, value: Any, name: str) -> RecordedOperator | None:
    op = recording.maker.get(value) if isinstance(value, Ref) else None
    return op if op is not None and op.name == name else None
