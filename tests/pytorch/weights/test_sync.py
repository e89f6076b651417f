"""Weights and buffers between the run's store and the model."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.weights.sync import WeightSync  # noqa: E402


def test_a_norm_that_is_switched_between_passes_is_refused(tmp_path):
    """Its statistics are no state of the second program, whose store would have to be another."""
    kit = Kit(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 4))
    said = r"test_sync.py:[0-9]+: 1.running_mean, 1.running_var are updated in some"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for is_training in (True, False, True):
            kit.model[1].train(is_training)
            for x, y in kit.train:
                kit.optimizer.zero_grad()
                kit.criterion(kit.model(x), y).backward()
                kit.optimizer.step()


def test_weights_are_kept_while_a_step_that_ends_adds_its_own():
    sync, added = WeightSync(nn.Linear(2, 2), None), []

    class EndsAStep:
        def keep(self, copies):
            added.append(EndsAStep())
            sync.before.add(added[-1])

    first = EndsAStep()
    sync.before.add(first)
    sync.keep_weights()
    assert len(added) == 1
    assert not sync.before
