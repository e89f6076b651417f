"""Replicas of a model: the plan of one of them, and its memory in the arena.

Each replica computes an equal share of every batch, with its own buffers and gradients; all read
the same weights. The first one writes its gradients to the store. From `partial_offset_bytes` on
the arena has

    for each replica            one group's gradients of a minibatch, before they are added
    for each later replica      its gradients, laid out as in the store
"""

from collections.abc import Iterable, Sequence
from math import prod

from msgspec.structs import replace

from csrun.executable.arrays import Array, Bytes, aligned, nbytes_of, view
from csrun.executable.plan import InputSpec, Plan
from csrun.executable.shared_store import window_bytes
from csrun.executable.stored_groups import Group


def of_replica(plan: Plan, number: int) -> Plan:
    """Return the plan of a replica, which is that of a model without replicas.

    Its gradients may be anywhere in the arena, so the arena takes the place of the store.
    """
    samples = plan.batch_size // plan.replicas
    shift = number * plan.minibatches_in_flight * plan.minibatch_stride_bytes
    partial = plan.partial_offset_bytes + number * largest_sent_bytes(plan.groups)
    return replace(
        plan,
        replicas=1,
        batch_size=samples,
        inputs=inputs_of_part(plan.inputs, plan.replicas),
        buffers=tuple(replace(b, offset_bytes=b.offset_bytes + shift) for b in plan.buffers),
        store=replace(plan.store, gradients_offset=_gradients_offset(plan, number)),
        partial_offset_bytes=partial,
        kept_offset_bytes=plan.kept_offset_bytes + number * _kept_bytes(plan),
    )


def inputs_of_part(inputs: Sequence[InputSpec], parts: int) -> tuple[InputSpec, ...]:
    """Return the arrays of one of equal parts of a batch."""
    return tuple(
        replace(spec, shape=(spec.shape[0] // parts, *spec.shape[1:])) if spec.shape else spec
        for spec in inputs
    )


def replica_gradients(plan: Plan, arena: Bytes) -> list[Array]:
    """Return the gradients of each replica as flat arrays; the first ones are in the store.

    Empty for a program without gradients.
    """
    offsets = [_gradients_offset(plan, number) for number in range(plan.replicas)]
    shape = (window_bytes(plan) // nbytes_of((1,), plan.precision),)
    return [view(arena, offset, shape, plan.precision) for offset in offsets if offset is not None]


def largest_sent_bytes(groups: Iterable[Group]) -> int:
    """Return the size of the largest group's gradients, as the wafer computes them."""
    return max((aligned(group.sent_bytes) for group in groups), default=0)


def _gradients_offset(plan: Plan, number: int) -> int | None:
    """Return the offset of a replica's gradients in the arena, if it has any."""
    first = plan.store.gradients_offset
    if first is None or not number:
        return first
    later = plan.partial_offset_bytes + plan.replicas * largest_sent_bytes(plan.groups)
    return later + (number - 1) * aligned(window_bytes(plan))


def _kept_bytes(plan: Plan) -> int:
    """Return the size of a replica's outputs that are kept until the step is over."""
    if plan.micro_batches == 1:
        return 0
    buffers = {b.name: b for b in plan.buffers}
    kept = [buffers[output.buffer] for output in plan.outputs]
    count = plan.minibatches // plan.replicas
    return count * sum(aligned(prod(b.shape) * nbytes_of((1,), b.dtype)) for b in kept)
