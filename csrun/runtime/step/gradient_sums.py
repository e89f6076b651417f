"""Sums of gradients in the store, over minibatches or over accumulated batches."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from csrun.base.half_formats import WORD, HalfFormat
from csrun.executable import Plan, StepState, flat_views, view
from csrun.executable.arrays import Array, Batch, Bytes
from csrun.executable.bind import partial_gradients
from csrun.executable.store_places import AnyStore, sent_places
from csrun.runtime.step.placed_program import PlacedProgram, Visit
from csrun.runtime.wire.messages import StepOrder

WIDENED_AT_A_TIME = 1 << 15  # elements of a block, whose scratch arrays fit in a core's cache


def places(order: StepOrder) -> Iterator[tuple[int, int, bool]]:
    """Return for each batch its global step, its index in the step, and whether it is the last
    one.
    """
    first, count, accumulation = order.first, order.count, order.accumulation
    if accumulation is None:
        yield from ((first + number, 0, True) for number in range(count))
        return
    step, batch = first, accumulation.before
    for ends in accumulation.ends[:count]:
        yield step, batch, ends
        step, batch = (step + 1, 0) if ends else (step, batch + 1)


@dataclass(frozen=True, slots=True)
class GradientSum:
    """A group's gradients in the store, and the buffer of a visit's gradients that are added to
    them.

    parts: pairs of both as flat arrays.
    half: format of gradients in 16-bit words.
    adds: False for the first part of a step, which is written instead of added.
    is_part: other visits add to the group's gradients, too, so the buffer must be cleared first.
    """

    written: Bytes
    parts: Sequence[tuple[Array, Array]]
    half: HalfFormat | None
    adds: bool
    is_part: bool

    def prepare(self) -> None:
        """Prepare the buffer before the visit."""
        if self.is_part:
            self.written.fill(0)

    def add(self) -> None:
        """Add the gradients after the visit."""
        for total, part in self.parts:
            if self.half is not None and part.dtype == WORD:
                _add_words(self.half, total, part, self.adds)
            elif self.adds:
                np.add(total, part, out=total)
            else:
                total[...] = part


def _add_words(half: HalfFormat, total: Array, words: Array, adds: bool) -> None:
    """Add numbers stored as words, or write them."""
    scratch = np.empty(min(WIDENED_AT_A_TIME, len(words)), np.float32)
    for start in range(0, len(words), WIDENED_AT_A_TIME):
        piece = slice(start, start + WIDENED_AT_A_TIME)
        if not adds:
            half.widen(words[piece], total[piece])
            continue
        widened = scratch[: len(words[piece])]
        half.widen(words[piece], widened)
        np.add(total[piece], widened, out=total[piece])


def run_visit(visit: Visit, batch: Batch, step: StepState, sums: Sequence[GradientSum]) -> None:
    """Call a function of the program, and accumulate its gradients."""
    for gradients in sums:
        gradients.prepare()
    visit(batch, step)
    for gradients in sums:
        gradients.add()


def gradient_sums(program: PlacedProgram, is_first: bool = False) -> list[list[GradientSum]]:
    """Return for each visit the gradients that it accumulates.

    is_first: part of a step's first minibatch, whose gradients are in the store unless they are
        words.
    """
    plan, arena = program.plan, program.arena
    if plan.store.gradients_offset is None or (is_first and not plan.sums_words):
        return [[] for _ in plan.visits]
    written, parts = partial_gradients(plan, arena), _parts(plan, arena, program.store)
    visits_of = Counter(group for visit in plan.visits for group in visit.gradients)
    found, seen = [], set[int]()
    for visit in plan.visits:
        found.append(
            [
                GradientSum(
                    written[group],
                    parts[group],
                    plan.storage,
                    not is_first or group in seen,
                    visits_of[group] > 1,
                )
                for group in visit.gradients
            ]
        )
        seen.update(visit.gradients)
    return found


def _parts(plan: Plan, arena: Bytes, store: AnyStore) -> list[list[tuple[Array, Array]]]:
    """Return for each group its gradients in the store, and those of a minibatch in the arena."""
    totals, written = flat_views(plan, store), partial_gradients(plan, arena)
    flat = [totals.get(f"gradients/{group.index}") for group in plan.groups]
    if plan.storage is None:
        return [
            [] if total is None else [(total, part.view(plan.precision))]
            for total, part in zip(flat, written, strict=True)
        ]
    found: list[list[tuple[Array, Array]]] = [[] for _ in plan.groups]
    places = sent_places(plan)
    group_of = {layer.name: plan.groups[layer.group] for layer in plan.layers}
    for p in plan.parameters:
        group, place, size = group_of[p.layer], places[p.name], prod(p.shape)
        total = flat[group.index]
        if total is not None:
            start = (p.offset_bytes - group.offset_bytes) // total.itemsize
            part = view(written[group.index], place.offset_bytes, (size,), place.dtype)
            found[group.index].append((total[start : start + size], part))
    return found
