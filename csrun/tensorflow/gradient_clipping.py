"""tf.clip_by_global_norm, found by its operators."""

from collections.abc import Mapping
from typing import Any

from csrun.tensorflow.errors import GraphError, refused
from csrun.tensorflow.graph_folding import value_of


def clip_norm_of(gradient: Any, known: Mapping[str, str]) -> tuple[float | None, str | None]:
    """Return the norm that a gradient is clipped to, and the gradient's placeholder.

    known: placeholders of gradients. The second is None for a gradient that is changed otherwise.
    Source: tf.clip_by_global_norm: g * (clip_norm * min(1 / norm, 1 / clip_norm) + (norm - norm))
    """
    op = _plain(gradient.op)
    if op.name in known:
        return None, op.name
    if op.type != "Mul":
        return None, None
    source, scale = _plain(op.inputs[0].op), _plain(op.inputs[1].op)
    if source.name not in known or scale.type not in ("AddV2", "Add"):
        return None, None
    factor = _plain(scale.inputs[0].op)
    if factor.type != "Mul":
        return None, None
    length = next((v for t in factor.inputs if (v := value_of(t)) is not None), None)
    norms = [t for t in factor.inputs if _plain(t.op).type == "Minimum"]
    if length is None or not norms or not _is_norm_of_all(norms[0], known):
        return None, None
    return float(length), source.name


def refuse_edited(op: Any, variable: str) -> GraphError:
    """The error of a gradient that is changed before an optimizer takes it."""
    return refused(
        op,
        f"the gradient of {variable} is changed in a way that is not supported: use it as it is, "
        "or tf.clip_by_global_norm of all gradients",
    )


def _is_norm_of_all(minimum: Any, known: Mapping[str, str]) -> bool:
    """True where the norm is that of all gradients."""
    from csrun.tensorflow.graph_gradients import ancestors

    ops = ancestors([minimum.op])
    squared = {_plain(op.inputs[0].op).name for op in ops if op.type == "L2Loss"}
    return squared == set(known) and any(op.type == "Sqrt" for op in ops)


def _plain(op: Any) -> Any:
    """The operator below identities."""
    while op.type in ("Identity", "Cast"):
        op = op.inputs[0].op
    return op
