"""State of the loss scale in the tensors of a checkpoint."""

from types import SimpleNamespace

import numpy as np

from csrun.base.half_formats import SCALE_TENSORS
from csrun.runtime.step.scale_rows import scale_of

STATE = {"loss_scale": 1024.0, "steps_since_rescale": 7.0, "overflows_since_rescale": 0.0}


def checkpoint(values):
    manifest = SimpleNamespace(tensors=dict.fromkeys(values))
    return SimpleNamespace(manifest=manifest, tensor=lambda name: np.array(values[name]))


def test_checkpoints_of_earlier_versions_have_no_count_of_skipped_steps():
    assert scale_of(checkpoint(STATE)) == (1024, 7, 0, 0)
    assert scale_of(checkpoint({**STATE, "skipped_steps": 3.0})) == (1024, 7, 0, 3)
    assert {*STATE, "skipped_steps"} == set(SCALE_TENSORS)


def test_a_checkpoint_without_scaling_has_no_state():
    assert scale_of(checkpoint({"fc/kernel": 1.0})) is None
