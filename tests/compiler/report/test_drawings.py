"""Drawings of the report: names in the floor plan, and groups copied into the wafer's slots."""

from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest

from csrun.compiler.plan.slots import place_groups
from csrun.compiler.report.drawings import (
    EDGE,
    LONGEST_BESIDE,
    WIDTH,
    GroupStream,
    LayerBox,
    draw,
    stops,
)
from csrun.executable import Group, Rectangle, StepState, Visit
from csrun.executable.plan import PREFETCH_BYTES
from csrun.runtime.step import weights

FABRIC = Rectangle(0, 0, 720, 720)


def spots(*rectangles, name="layer"):
    return [
        LayerBox(n, "fc", rectangle, "", (f"{name}{n}", str(n)))
        for n, rectangle in enumerate(rectangles)
    ]


def labels(drawing):
    return [(p.label.text, p.label.is_rotated, p.label.beside) for p in drawing.places if p.label]


def test_a_name_stands_upright_lies_or_gives_way_to_a_number():
    flat, tall = Rectangle(0, 0, 300, 30), Rectangle(0, 30, 30, 300)
    square, tiny = Rectangle(30, 30, 30, 30), Rectangle(60, 60, 10, 10)
    found = draw("", spots(flat, tall, square, tiny), FABRIC, beside=False)
    assert labels(found) == [
        ("layer0", False, False),
        ("layer1", True, False),
        ("2", False, False),
    ]


def test_what_has_no_room_is_named_beside_in_order_and_apart():
    tiny = [Rectangle(10 * n, 710, 2, 2) for n in range(5)]
    found = draw("", spots(*tiny), FABRIC)
    assert {label[1:] for label in labels(found)} == {(False, True)}
    rows = [place.label.y for place in found.places]
    assert rows == sorted(rows)
    assert all(after - before >= 1 for before, after in pairwise(rows))
    assert rows[-1] <= found.fabric.height - EDGE
    assert found.fabric.width < WIDTH  # room for the names


def test_room_for_a_name_beside_is_taken_from_the_fabric_before_names_are_placed():
    """Without names the scale is 20 PEs a unit: the second name fits until the first takes room."""
    tiny, just = Rectangle(0, 0, 2, 2), Rectangle(0, 100, 86, 30)
    found = draw("", spots(tiny, just), FABRIC)
    for place in found.places:
        assert place.label is not None
        end = place.label.x + 0.6 * len(place.label.text)
        assert not place.label.beside or end <= WIDTH


def test_many_small_places_are_not_named_beside():
    tiny = [Rectangle(10 * n, 0, 2, 2) for n in range(30)]
    found = draw("", spots(*tiny), FABRIC)
    assert (labels(found), found.fabric.width) == ([], WIDTH)


def test_of_a_long_name_the_end_is_shown():
    ((text, *_),) = labels(draw("", spots(Rectangle(0, 0, 2, 2), name="h/3/" * 20), FABRIC))
    assert (len(text), text[0], text[-3:]) == (LONGEST_BESIDE, "…", "3/0")


class AtOnce:
    """Executor that finishes each task at once."""

    def submit(self, task):
        task()
        done = Future()
        done.set_result(None)
        return done


def chain(groups, training):
    """Visits of a plain chain."""
    visits = [Visit(f"forward_{g}", (g,)) for g in range(groups)]
    return visits + [
        Visit(f"backward_{g}", (g,), (g,), (g,)) for g in reversed(range(groups if training else 0))
    ]


def tied(groups, training):
    """Visits in which the first group is visited again in the middle, and complete at the end."""
    visits = chain(groups, training)
    again = [Visit("forward_0_again", (0,))]
    again += [Visit("backward_0_again", (0,), (0,))] if training else []
    return visits[:groups] + again + visits[groups:]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("order", [chain, tied])
@pytest.mark.parametrize("ahead_bytes", [0, 3 * PREFETCH_BYTES])
@pytest.mark.parametrize(
    "pattern",
    ["s", "L", "ss", "LL", "sLs", "LsL", "LLLLL", "LLsLs", "ssLL", "XLLLLLL", "LLsXsLL"],
)
def test_groups_come_as_the_wafers_slots_fetch_them(
    monkeypatch, training, order, pattern, ahead_bytes
):
    """Drawn arrivals are the copies into the wafer's slots, prefetched or on demand."""
    nbytes = {"s": 64, "L": PREFETCH_BYTES, "X": 4 * PREFETCH_BYTES}
    sizes = [nbytes[size] for size in pattern]
    visits = order(len(sizes), training)
    offsets, _ = place_groups(sizes, [visit.groups[0] for visit in visits], ahead_bytes)
    groups = [
        Group(n, (f"layer{n}",), 0, size, offset)
        for n, (size, offset) in enumerate(zip(sizes, offsets, strict=True))
    ]
    copied = []
    monkeypatch.setattr(
        weights, "slot_copies", lambda *_: [partial(copied.append, g.index) for g in groups]
    )
    completes = tuple(group for visit in visits for group in visit.completes)
    plan = SimpleNamespace(
        groups=groups,
        visits=visits,
        order=visits,
        deliveries=completes,
        clip_norm=None,
        accumulates=False,
    )
    slots = weights.Slots(plan, None, SimpleNamespace(refresh=lambda _: None))
    slots.close()
    slots._thread = AtOnce()
    counters = SimpleNamespace(take=lambda: None, raise_by=lambda: None, ready=lambda: 1)
    ends = [weights.MemoryxLink(counters, counters, SimpleNamespace(steps={}, held=[0.0]))]
    streamed = weights.StreamedWeights(plan, slots, ends, [0] * len(groups))
    for step in range(3):
        arrivals, begun = [], {}
        for number, visit in enumerate(visits):
            (group,) = visit.groups
            held = group in slots._residency.held
            copied.clear()
            streamed.enter(number)
            in_turn = group in copied
            arrivals.append(
                "still resident" if held else "fetched ahead" if group in begun else "?"
            )
            if in_turn:
                arrivals[-1] = "fetched on demand"
            arrivals[-1] += f" {number - begun.pop(group, number)}"
            begun |= dict.fromkeys({*copied} - {group}, number)
            for complete in visit.completes:
                streamed.deliver(complete, StepState())
        drawn = [f"{stop.arrival.value} {stop.ahead}" for stop in stops(groups, visits)]
        assert step == 0 or arrivals == drawn


def test_a_large_group_comes_while_several_small_ones_are_computed_on():
    """Memory for twice the large group: its load begins when half of the small ones are left."""
    sizes = [PREFETCH_BYTES] * 8 + [4 * PREFETCH_BYTES]
    visits = chain(len(sizes), training=False)
    offsets, length = place_groups(sizes, range(len(sizes)), 4 * PREFETCH_BYTES)
    groups = [
        Group(n, (f"layer{n}",), 0, size, offset)
        for n, (size, offset) in enumerate(zip(sizes, offsets, strict=True))
    ]
    assert length <= 8 * PREFETCH_BYTES
    found = stops(groups, visits)
    assert found[-1].ahead >= 4
    drawn = GroupStream(tuple(groups), found)
    assert drawn.lanes <= 8
    for lane in range(drawn.lanes):
        own = [stay for stay in drawn.stays if stay.lane == lane]
        assert all(a.last < b.first for a, b in pairwise(own))


def test_a_program_of_which_nothing_is_wanted_has_no_stops():
    assert stops((Group(0, ("a",), 0, 64, 0),), ()) == ()
