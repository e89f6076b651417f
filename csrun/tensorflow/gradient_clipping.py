"""Recognition of tf.clip_by_global_norm, clip_by_norm and clip_by_value."""

from collections.abc import Mapping
from typing import Any

from csrun.cirh.ops.learning import UNLIMITED, Clipping
from csrun.tensorflow.errors import GraphError, refused
from csrun.tensorflow.graph_folding import value_of
from csrun.tensorflow.graph_gradients import ancestors

#: Limits of a gradient, and its placeholder.
Clipped = tuple[Clipping, str]


def clipping_of(gradient: Any, known: Mapping[str, str]) -> Clipped | None:
    """Return the limits of a gradient, and the gradient's placeholder.

    known: placeholders of gradients. None for a gradient that is changed in another way.
    """
    op = _plain(gradient.op)
    if op.name in known:
        return UNLIMITED, op.name
    match op.type:
        case "Mul":
            return _by_norm(op, known)
        case "Maximum":
            return _by_value(op, known)
        case "RealDiv":
            return _by_gradient_norm(op, known)
        case _:
            return None


def _by_norm(op: Any, known: Mapping[str, str]) -> Clipped | None:
    """Source: tf.clip_by_global_norm: g * (c * min(1 / norm, 1 / c) + (norm - norm))"""
    source, scale = _plain(op.inputs[0].op), _plain(op.inputs[1].op)
    if source.name not in known or scale.type not in ("AddV2", "Add"):
        return None
    factor = _plain(scale.inputs[0].op)
    if factor.type != "Mul":
        return None
    length = next((v for t in factor.inputs if (v := value_of(t)) is not None), None)
    norms = [t for t in factor.inputs if _plain(t.op).type == "Minimum"]
    if length is None or not norms or not _is_norm_of_all(norms[0], known):
        return None
    return Clipping(clip_norm=float(length)), source.name


def _by_value(op: Any, known: Mapping[str, str]) -> Clipped | None:
    """Source: tf.clip_by_value: max(min(g, most), least)"""
    inner, least = _plain(op.inputs[0].op), value_of(op.inputs[1])
    if inner.type != "Minimum" or least is None:
        return None
    source, most = _plain(inner.inputs[0].op), value_of(inner.inputs[1])
    if source.name not in known or most is None or float(most) != -float(least):
        return None
    return Clipping(clip_value=float(most)), source.name


def _by_gradient_norm(op: Any, known: Mapping[str, str]) -> Clipped | None:
    """Source: tf.clip_by_norm: g * c / max(norm of g, c)"""
    product, longer = _plain(op.inputs[0].op), _plain(op.inputs[1].op)
    if product.type != "Mul" or longer.type != "Maximum":
        return None
    source, length = _plain(product.inputs[0].op), value_of(product.inputs[1])
    if source.name not in known or length is None or value_of(longer.inputs[1]) != length:
        return None
    below = ancestors([longer.inputs[0].op])
    is_of_all = all(t.shape.num_elements() == 1 for t in longer.inputs)
    is_norm = is_of_all and {"Sqrt", "Sum", "Mul"} <= {each.type for each in below}
    if not is_norm or {each.name for each in below} & known.keys() != {source.name}:
        return None
    return Clipping(clip_each=float(length)), source.name


def refuse_edited(op: Any, variable: str) -> GraphError:
    """Return the error for a gradient that is changed before an optimizer uses it."""
    return refused(
        op,
        f"the gradient of {variable} is changed in a way that is not supported: use it as it is, "
        "tf.clip_by_global_norm of all gradients, tf.clip_by_norm, or tf.clip_by_value between -v "
        "and v",
    )


def _is_norm_of_all(minimum: Any, known: Mapping[str, str]) -> bool:
    """True if the norm is over all gradients."""
    ops = ancestors([minimum.op])
    squared = {_plain(op.inputs[0].op).name for op in ops if op.type == "L2Loss"}
    return squared == set(known) and any(op.type == "Sqrt" for op in ops)


def _plain(op: Any) -> Any:
    """Return the operator below identities."""
    while op.type in ("Identity", "Cast"):
        op = op.inputs[0].op
    return op
