"""1F1B schedule: invariants of any order, and the order of a small case as in the paper."""

import pytest

from csrun.compiler.plan.pipeline_schedule import interleave


def chain(groups):
    """Stages of a training's visits."""
    return [*range(groups), *reversed(range(groups))]


def text(order, groups) -> str:
    """Order as text: F or B with stage and minibatch."""
    return " ".join(
        f"F{c.visit}.{c.minibatch}"
        if c.visit < groups
        else f"B{2 * groups - 1 - c.visit}.{c.minibatch}"
        for c in order
    )


TIED = [0, 1, 2, 0, 0, 2, 1, 0]  # the first stage's weights are used at the end again


@pytest.mark.parametrize("stages", [chain(1), chain(2), chain(3), chain(11), TIED, [0, 1, 0, 1, 1]])
@pytest.mark.parametrize("minibatches", [1, 2, 4, 16])
def test_every_call_comes_once_after_what_it_needs(stages, minibatches):
    order = interleave(stages, minibatches)
    place = {(c.visit, c.minibatch): i for i, c in enumerate(order)}
    assert len(place) == len(order) == len(stages) * minibatches
    for (visit, minibatch), at in place.items():
        assert not visit or place[visit - 1, minibatch] < at
        assert not minibatch or place[visit, minibatch - 1] < at


@pytest.mark.parametrize(("groups", "minibatches"), [(4, 8), (3, 2), (2, 16)])
def test_a_group_holds_no_more_than_stand_behind_it(groups, minibatches):
    held = [0] * groups
    for call in interleave(chain(groups), minibatches):
        stage = chain(groups)[call.visit]
        held[stage] += 1 if call.visit < groups else -1
        assert 0 <= held[stage] <= groups - stage


def test_two_groups_with_three_minibatches():
    """Worked out by hand, round by round; within a round the later group is first."""
    assert text(interleave(chain(2), 3), 2) == (
        "F0.0 F1.0 F0.1 B1.0 F1.1 B0.0 B1.1 F0.2 F1.2 B0.1 B1.2 B0.2"
    )


def test_forward_only_is_a_plain_pipeline():
    assert text(interleave([0, 1], 2), 2) == "F0.0 F1.0 F0.1 F1.1"


def test_without_visits_there_is_no_call():
    assert interleave([], 4) == ()
