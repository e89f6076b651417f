"""Floor plan: layers are inside the fabric, do not overlap, and at most a tenth can be gained."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import SYSTEM
from support.rectangles import apart, inside

from csrun.compiler.plan.floor_plan import (
    Demands,
    Wire,
    arrange,
    equal_parts,
    pes_needed,
    usable_part,
    wire_length,
)
from csrun.executable import Rectangle

PART = usable_part(SYSTEM)
WITHIN = 0.9  # of the bound


@given(st.integers(1, 200), st.integers(1, 200), st.data())
def test_equal_parts_are_as_large_as_a_grid_allows(width, height, data):
    part = Rectangle(7, 3, width, height)
    count = data.draw(st.integers(1, min(part.pes, 60)))
    parts = equal_parts(part, count)
    assert len(parts) == count
    assert all(inside(one, part) for one in parts)
    assert all(apart(a, b) for a, b in combinations(parts, 2))
    assert len({(one.width, one.height) for one in parts}) == 1
    grids = [(columns, -(-count // columns)) for columns in range(1, count + 1)]
    assert parts[0].pes == max((width // columns) * (height // rows) for columns, rows in grids)


def test_of_equally_large_parts_the_squarest():
    assert equal_parts(Rectangle(0, 0, 40, 40), 4)[3] == Rectangle(20, 20, 20, 20)


@st.composite
def networks(draw, most_memory: float = 0.8) -> tuple[list[int], list[int]]:
    """FLOPs and PEs for memory of 2 to 60 layers, over four orders of magnitude each."""
    count = draw(st.integers(2, 60))
    exponents = st.lists(st.floats(0, 4), min_size=count, max_size=count)
    flops = [int(10 ** (6 + exponent)) for exponent in draw(exponents)]
    sizes = [10**exponent for exponent in draw(exponents)]
    pes = draw(st.floats(0, most_memory)) * PART.pes
    return flops, [max(1, int(pes * size / sum(sizes))) for size in sizes]


def rate_bound(flops: Sequence[int], memory: Sequence[int], pes: int) -> float:
    """PEs per FLOP, divided exactly; layers that need more PEs for their memory have just those."""
    order = sorted(range(len(flops)), key=lambda i: memory[i] / flops[i])
    work, rate = sum(flops), pes / sum(flops)
    for i in reversed(order):
        if memory[i] <= rate * flops[i]:
            break
        pes, work = pes - memory[i], work - flops[i]
        rate = pes / work if work else float("inf")
    return rate


def chain(count: int) -> list[Wire]:
    return [Wire(i, j) for i, j in pairwise(range(count))]


@settings(max_examples=50)
@given(networks())
def test_a_plan_is_sound_and_nearly_as_fast_as_its_area_allows(network):
    flops, memory = network
    plan = arrange(Demands(flops, memory), chain(len(flops)), PART)
    assert len(plan) == len(flops)
    assert all(inside(r, PART) for r in plan)
    assert all(apart(a, b) for a, b in combinations(plan, 2))
    assert all(r.pes >= pes for r, pes in zip(plan, memory, strict=True))
    rate = min(r.pes / work for r, work in zip(plan, flops, strict=True))
    assert rate >= WITHIN * rate_bound(flops, memory, PART.pes)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 9), st.integers(1, 9))
def test_small_parts_are_used_or_refused(memory, width, height):
    part, demands = Rectangle(2, 5, width, height), Demands([1] * len(memory), memory)
    needed = pes_needed(demands, part)
    assert needed >= sum(memory)
    if needed > part.pes:
        with pytest.raises(ValueError, match="does not fit"):
            arrange(demands, [], part)
        return
    plan = arrange(demands, [], part)
    assert all(inside(r, part) for r in plan)
    assert all(apart(a, b) for a, b in combinations(plan, 2))
    assert all(r.pes >= pes for r, pes in zip(plan, memory, strict=True))


def test_four_equal_layers_share_a_square_and_a_ring_of_wires_closes():
    """Worked out by hand: two strips of two layers, three unit-length wires and the return wire."""
    ring = [*chain(4), Wire(3, 0)]
    plan = arrange(Demands([1] * 4, [1] * 4), ring, Rectangle(0, 0, 2, 2))
    assert plan == tuple(Rectangle(x, y, 1, 1) for x, y in ((0, 0), (0, 1), (1, 1), (1, 0)))
    assert wire_length(plan, ring) == pytest.approx(4)


def test_the_published_fabric_leaves_seven_columns_and_two_rows():
    """757 x 996 cores, of which 745,500 = 750 x 994 are available to programs."""
    assert usable_part(SYSTEM) == Rectangle(3, 1, 750, 994)


@pytest.mark.parametrize(
    ("cores", "shape"), [(9, (3, 3)), (7, (1, 7)), (10**6, (757, 996)), (757 * 900, (757, 900))]
)
def test_the_usable_part_is_the_largest_and_likest(cores, shape):
    system = msgspec.structs.replace(SYSTEM, usable_cores=cores)
    part = usable_part(system)
    assert (part.width, part.height) == shape
    assert inside(part, Rectangle(0, 0, system.fabric_width, system.fabric_height))
