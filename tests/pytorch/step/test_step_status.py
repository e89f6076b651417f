"""The states of a step, and the changes that are none."""

import pytest

from csrun.pytorch.step.step_status import (
    TRANSITIONS,
    InvalidTransitionError,
    Phase,
    Progress,
    StepStatus,
)


def test_a_step_whose_loss_is_read_before_the_optimizer_has_run_then_and_is_not_over():
    state = StepStatus(Phase.TOKENS)
    state.enter(Phase.BACKWARD)
    state.advance(Progress.QUEUED)
    state.advance(Progress.DONE)
    assert state.has_values
    assert not state.is_over
    state.enter(Phase.OVER)
    assert state.is_over


@pytest.mark.parametrize("phase", [Phase.RECORDING, Phase.BACKWARD, Phase.OVER])
def test_a_step_that_is_over_stays_over(phase):
    state = StepStatus(Phase.TOKENS)
    state.enter(Phase.OVER)
    with pytest.raises(InvalidTransitionError, match=r"OVER -> .* of a step that is OVER, PENDING"):
        state.enter(phase)


@pytest.mark.parametrize("progress", [Progress.DONE, Progress.REPLAYED])
def test_nothing_has_run_that_was_not_queued(progress):
    with pytest.raises(InvalidTransitionError):
        StepStatus(Phase.TOKENS).advance(progress)


def test_a_step_runs_once():
    state = StepStatus(Phase.TOKENS)
    state.advance(Progress.QUEUED)
    state.advance(Progress.REPLAYED)
    with pytest.raises(InvalidTransitionError):
        state.advance(Progress.DONE)


def test_each_state_but_the_first_ones_can_be_reached():
    reached = {after for _, after in TRANSITIONS}
    assert {*Phase, *Progress} - reached == {Phase.RECORDING, Phase.TOKENS, Progress.PENDING}
