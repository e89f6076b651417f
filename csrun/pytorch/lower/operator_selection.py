"""Operators of a Recording that a program contains, and the type that it computes with.

An operator is named by its index in `Recording.operators`.
"""

from collections.abc import Sequence

from csrun.pytorch.errors import CaptureError, user_line
from csrun.pytorch.half_types import refuse_halves
from csrun.pytorch.lower.loss_scaling import seed_of
from csrun.pytorch.operators.base import SMALL
from csrun.pytorch.record.recording import LeafSource, Recording, Ref, ancestors

CAST = "aten._to_copy.default"
GIVEN = frozenset({LeafSource.INPUT, LeafSource.SCRIPT})


def float_type_of(recording: Recording) -> str:
    """Return the common type of all floats among the leaves: float32 or float64.

    A number of the script may have another, as in PyTorch, where it promotes no tensor, and so may
    a tensor of the batch or of the script that is only cast.

    Raises: CaptureError for other types, or for two
    """
    computed = {ref for op in recording.operators if op.name != CAST for ref in op.operands}
    leaves = [
        leaf
        for leaf in (*recording.leaves, *recording.host_leaves)
        if leaf.source is not LeafSource.CONSTANT
        and leaf.tensor.is_floating_point()
        and (leaf.value in computed or leaf.source not in GIVEN)
    ]
    tensors = [x for x in leaves if x.source is not LeafSource.SCRIPT or x.tensor.dim()]
    found = {
        str(leaf.tensor.dtype).removeprefix("torch."): f"{leaf.source} {leaf.name}"
        for leaf in tensors or leaves
    }
    refuse_halves(found)
    if len(found) > 1 or not set(found) <= {"float32", "float64"}:
        got = " and ".join(f"{kind} ({name})" for kind, name in sorted(found.items()))
        raise CaptureError(
            f"{user_line()}: parameters, buffers and batches must all be float32 or all "
            f"float64, got {got}: cast the model, or the batches, as by x = x.float()"
        )
    return next(iter(found), "float32")


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
