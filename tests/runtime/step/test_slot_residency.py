"""Residency of groups in slots: a new group evicts those that it overlaps."""

import random
from types import SimpleNamespace

import pytest

from csrun.runtime.step.weights import SlotResidency

APART = [(0, 64), (64, 128), (192, 64)]
A_RING = [(0, 128), (128, 128), (64, 128), (192, 64)]
EMPTY = [(0, 128), (0, 0), (64, 128)]


@pytest.mark.parametrize("slots", [APART, A_RING, EMPTY])
def test_a_group_displaces_those_that_overlap(slots):
    groups = [SimpleNamespace(slot_offset_bytes=start, sent_bytes=size) for start, size in slots]
    places = [set(range(start, start + size)) for start, size in slots]
    residency, held, draw = SlotResidency(SimpleNamespace(groups=groups)), set(), random.Random(0)
    for _ in range(50):
        group = draw.randrange(len(slots))
        overlapping = {other for other in held if places[other] & places[group]}
        assert residency.overlaps(group, sorted(held)) == bool(overlapping)
        residency.mark_resident(group)
        held = held - overlapping | {group}
        assert residency.held == held
