"""Scaled losses: the start of a recording's backward pass, and the edits allowed after it."""

from collections.abc import Mapping, Sequence

import msgspec
from xdsl.dialects.builtin import DictionaryAttr

from csrun.cirh.ops.base import attribute
from csrun.executable.loss_scale import LossScaling
from csrun.pytorch.errors import CaptureError, user_line
from csrun.pytorch.record.recording import Recording, Ref

SEED = "aten.ones_like.default"  # the gradient of the loss, with which PyTorch begins


def seed_of(recording: Recording) -> int:
    """Return the number of the operator that creates the gradient of the loss, which is 1.

    Raises: CaptureError if `backward()` got a gradient
    """
    number = recording.forward_end
    made = recording.operators[number] if number < len(recording.operators) else None
    if made is None or made.name != SEED or made.arguments[:1] != (recording.loss,):
        raise CaptureError(
            f"{recording.loss_line}: a loss that a GradScaler scales must depend on the model, and "
            "its backward() takes no gradient: multiply the loss instead"
        )
    return number


def require_unedited(
    recording: Recording, gradients: Mapping[str, Ref], trained: Sequence[str]
) -> None:
    """Raises: CaptureError for edits of scaled gradients besides clipping"""
    first = recording.first_gradients
    if odd := [name for name in trained if gradients[name] != first.get(name)]:
        raise CaptureError(
            f"{user_line()}: the gradient of {odd[0]} is edited, and the loss is scaled: scaled "
            "gradients can be clipped by clip_grad_norm_ or clip_grad_value_ of all parameters; in "
            "mixed_bfloat16 the loss needs no GradScaler"
        )


def rule_of(scaling: LossScaling) -> DictionaryAttr:
    """Return the rule in the form that updates use."""
    found = msgspec.structs.asdict(scaling)
    return DictionaryAttr({name: attribute(value) for name, value in found.items()})
