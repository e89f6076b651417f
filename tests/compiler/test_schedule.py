"""1F1B: what must hold of any order, and the order of a small case as the paper draws it."""

import pytest

from csrun.compiler.schedule import forward_only, one_forward_one_backward


def text(order) -> str:
    return " ".join(f"{'B' if c.backward else 'F'}{c.group}.{c.minibatch}" for c in order)


@pytest.mark.parametrize("groups", [1, 2, 3, 11])
@pytest.mark.parametrize("minibatches", [1, 2, 4, 16])
def test_every_call_comes_once_after_what_it_needs(groups, minibatches):
    order = one_forward_one_backward(groups, minibatches)
    place = {(c.backward, c.group, c.minibatch): i for i, c in enumerate(order)}
    assert len(place) == len(order) == 2 * groups * minibatches
    for (backward, group, minibatch), at in place.items():
        if backward:
            assert place[False, group, minibatch] < at
            if group + 1 < groups:
                assert place[True, group + 1, minibatch] < at
        elif group:
            assert place[False, group - 1, minibatch] < at
        if minibatch:
            assert place[backward, group, minibatch - 1] < at


@pytest.mark.parametrize(("groups", "minibatches"), [(4, 8), (3, 2), (2, 16)])
def test_a_group_holds_no_more_than_stand_behind_it(groups, minibatches):
    held = [0] * groups
    for call in one_forward_one_backward(groups, minibatches):
        held[call.group] += -1 if call.backward else 1
        assert 0 <= held[call.group] <= groups - call.group


def test_two_groups_with_three_minibatches():
    """Worked out by hand, round by round; the later group of a round first."""
    assert text(one_forward_one_backward(2, 3)) == (
        "F0.0 F1.0 F0.1 B1.0 F1.1 B0.0 B1.1 F0.2 F1.2 B0.1 B1.2 B0.2"
    )


def test_forward_only_is_a_plain_pipeline():
    assert text(forward_only(2, 2)) == "F0.0 F1.0 F0.1 F1.1"
