"""States of a step, and invalid transitions."""

import pytest

from csrun.pytorch.step.step_status import (
    TRANSITIONS,
    InvalidTransitionError,
    StepPhase,
    StepProgress,
    StepStatus,
)


def test_a_step_whose_loss_is_read_before_the_optimizer_has_run_then_and_is_not_over():
    state = StepStatus(StepPhase.TOKENS)
    state.enter(StepPhase.BACKWARD)
    state.advance(StepProgress.QUEUED)
    state.advance(StepProgress.DONE)
    assert state.has_values
    assert not state.is_over
    state.enter(StepPhase.OVER)
    assert state.is_over


@pytest.mark.parametrize("phase", [StepPhase.RECORDING, StepPhase.BACKWARD, StepPhase.OVER])
def test_a_step_that_is_over_stays_over(phase):
    state = StepStatus(StepPhase.TOKENS)
    state.enter(StepPhase.OVER)
    with pytest.raises(InvalidTransitionError, match=r"OVER -> .* of a step that is OVER, PENDING"):
        state.enter(phase)


@pytest.mark.parametrize("progress", [StepProgress.DONE, StepProgress.REPLAYED])
def test_nothing_has_run_that_was_not_queued(progress):
    with pytest.raises(InvalidTransitionError):
        StepStatus(StepPhase.TOKENS).advance(progress)


def test_a_step_runs_once():
    state = StepStatus(StepPhase.TOKENS)
    state.advance(StepProgress.QUEUED)
    state.advance(StepProgress.REPLAYED)
    with pytest.raises(InvalidTransitionError):
        state.advance(StepProgress.DONE)


def test_each_state_but_the_first_ones_can_be_reached():
    reached = {after for _, after in TRANSITIONS}
    assert {*StepPhase, *StepProgress} - reached == {
        StepPhase.RECORDING,
        StepPhase.TOKENS,
        StepProgress.PENDING,
    }
