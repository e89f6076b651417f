"""Memory plan: live arrays share no bytes, dead arrays' bytes are reused."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csrun.compiler.graph.array import Array
from csrun.compiler.kernels.outputs import Argmax
from csrun.compiler.plan.memory_plan import Lifetime, lifetimes, place

LIVES = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=30
)


def lives_of(drawn) -> list[Lifetime]:
    return [
        Lifetime(Array(f"a{i}", (size,), "float32"), min(x, y), max(x, y))
        for i, (size, x, y) in enumerate(drawn)
    ]


@given(LIVES, st.sampled_from([0, 64, 4096]))
def test_arrays_that_live_together_lie_apart(drawn, base):
    alive = lives_of(drawn)
    buffers, end = place(alive, base)
    spans = [(b.offset_bytes, b.offset_bytes + 4 * int(np.prod(b.shape))) for b in buffers]
    assert all(start >= base and start % 64 == 0 and stop <= end for start, stop in spans)
    for (a, (a0, a1)), (b, (b0, b1)) in combinations(zip(alive, spans, strict=True), 2):
        if a.overlaps(b):
            assert a1 <= b0 or b1 <= a0
    assert end - base >= max(
        sum(lifetime.nbytes for lifetime in alive if lifetime.first <= now <= lifetime.last)
        for now in range(21)
    )


@given(LIVES, st.sampled_from([0, 64, 4096]))
def test_large_arrays_first_each_has_the_lowest_free_place(drawn, base):
    """Step by step as in the cited algorithm."""
    alive = lives_of(drawn)
    offsets = {b.name: b.offset_bytes for b in place(alive, base)[0]}
    placed: list[Lifetime] = []
    for lifetime in sorted(alive, key=lambda lifetime: -lifetime.nbytes):
        met = [(offsets[o.array.name], o.nbytes) for o in placed if o.overlaps(lifetime)]
        places = [base, *(start + nbytes for start, nbytes in met)]
        free = [
            here
            for here in places
            if all(here + lifetime.nbytes <= start or here >= start + n for start, n in met)
        ]
        assert offsets[lifetime.array.name] == min(free)
        placed.append(lifetime)


def test_a_chain_of_arrays_takes_two_places():
    chain = [Lifetime(Array(f"a{i}", (16,), "float32"), i, i + 1) for i in range(10)]
    _, end = place(chain, 0)
    assert end == pytest.approx(2 * 64)


def test_two_arrays_of_one_name_are_a_bug():
    pair = [
        Argmax("head", Array("input:x", (4, n), "float32"), Array("y", (n,), "int64"), 0)
        for n in (2, 3)
    ]
    with pytest.raises(ValueError, match="y of head"):
        lifetimes(pair, [], set())


def test_a_life_lasts_until_the_last_view_is_read():
    x, y, z = (Array(name, (2,), "int64") for name in "xyz")
    kernels = [
        Argmax("first", Array("input:x", (2, 3), "float32"), x, 1),
        Argmax("second", Array("input:x", (2, 3), "float32"), y, 1),
        Argmax("third", x.expanded((2, 2)), z, 1),
    ]
    found = lifetimes(kernels, [], set())
    assert [(lifetime.array, lifetime.last) for lifetime in found] == [(x, 2), (y, 1), (z, 2)]


def test_a_life_begins_with_the_first_part_that_is_written():
    whole = Array("whole", (4,), "int64")
    kernels = [
        Argmax("first", Array("input:x", (2, 3), "float32"), whole.sliced(0, 2, 4), 1),
        Argmax("second", Array("input:x", (2, 3), "float32"), whole.sliced(0, 0, 2), 1),
    ]
    assert lifetimes(kernels, [], set()) == [Lifetime(whole, 0, 1)]
