"""Operators of a Recording that a program contains, and the type that it computes with.

An operator is named by its index in `Recording.operators`.
"""

from collections.abc import Sequence

from csrun.pytorch.float_types import text_of, widest
from csrun.pytorch.half_types import refuse_halves
from csrun.pytorch.lower.loss_scaling import seed_of
from csrun.pytorch.operators.base import SMALL
from csrun.pytorch.record.recording import LeafSource, Recording, Ref, ancestors


def float_type_of(recording: Recording) -> str:
    """Return the type of the store: the widest of the weights, float32 or float64.

    Without weights, the widest of the inputs.

    Raises: CaptureError for a 16-bit type
    """
    leaves = [
        leaf
        for leaf in (*recording.leaves, *recording.host_leaves)
        if leaf.source is not LeafSource.CONSTANT and leaf.tensor.is_floating_point()
    ]
    stored = [x for x in leaves if x.source in (LeafSource.PARAMETER, LeafSource.BUFFER)]
    refuse_halves({text_of(x.tensor.dtype): f"{x.source} {x.name}" for x in leaves})
    return text_of(widest(leaf.tensor.dtype for leaf in stored or leaves))


def backward_operators(recording: Recording, is_scaled: bool) -> set[int]:
    """Return the operators that depend on the backward pass.

    is_scaled: the loss is scaled, and so is the gradient of the loss that the pass begins with.
    """
    found, late = set[int](), set[Ref]()
    if recording.loss is None:
        return found
    if is_scaled:
        found.add(seed_of(recording))
    for number, op in enumerate(
        recording.operators[recording.forward_end :], recording.forward_end
    ):
        if op.is_backward or any(operand in late for operand in op.operands):
            found.add(number)
            late.update(r for r in op.results if r is not None)
    return found


def dead_gradient_operators(recording: Recording, outputs: Sequence[Ref]) -> set[int]:
    """Return the operators on gradients that no update or output depends on."""
    ends = [*recording.gradients.values(), *recording.written.values(), *outputs]
    needed, end = ancestors(recording, ends), recording.backward_end
    late = enumerate(recording.operators[end:], end)
    return {number for number, op in late if needed.isdisjoint(op.results)}


def host_only_operators(recording: Recording, outputs: Sequence[Ref]) -> set[int]:
    """Return the operators on small integers that only the host reads."""
    left_out, found = set[Ref](), set[int]()
    ends = [*recording.gradients.values(), *recording.written.values(), *outputs]
    ends += [] if recording.loss is None else [recording.loss]
    known = {r for op in recording.operators if op.is_of_host for r in op.results if r}
    needed = ancestors(recording, ends, known)
    for number, op in enumerate(recording.operators):
        made = [ref for ref in op.results if ref is not None]
        is_small = any(recording.kind(ref).dtype in SMALL for ref in made)
        if needed.isdisjoint(made) and (is_small or not left_out.isdisjoint(op.operands)):
            found.add(number)
            left_out.update(made)
    return found
