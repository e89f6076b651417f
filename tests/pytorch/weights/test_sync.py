"""Weights and buffers between the run's store and the model."""

from contextlib import nullcontext
from math import inf

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from csrun.base.errors import CsrunError, UsageError  # noqa: E402
from csrun.pytorch.weights.sync import WeightSync  # noqa: E402
from csrun.records import checkpoints  # noqa: E402


def test_a_norm_that_is_switched_between_passes_is_refused(tmp_path):
    """Its statistics are not state of the second program, whose store would have to differ."""
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


class Watched(nn.Module):
    """Layer that keeps the minimum of its inputs, and the root of their sum."""

    def __init__(self):
        super().__init__()
        for name, first in (("least", inf), ("root", 0.0)):
            self.register_buffer(name, torch.tensor(first))
        self.inner = nn.Linear(6, 4)

    def forward(self, x):
        self.least.copy_(torch.minimum(self.least, x.abs().min() + inf))
        self.root.copy_(x.sum().sqrt())
        return self.inner(x)


@pytest.mark.parametrize("sums", [(4.0, 4.0), (4.0, -1.0)], ids=["finite", "NaN"])
def test_a_buffer_that_begins_at_infinity_may_stay_there_and_no_other(tmp_path, sums):
    kit = Kit(Watched())
    x = torch.cat([torch.full((8, 6), each / 48).double() for each in sums])
    kit.train = DataLoader(TensorDataset(x, torch.zeros(16, dtype=torch.int64)), 8)
    said = "tensor 0/root is not finite after step 2" if sums[1] < 0 else ""
    refusal = pytest.raises(CsrunError, match=said) if said else nullcontext()
    with refusal, kit.session(tmp_path, save_checkpoints_steps=1):
        kit.train_once()
    assert checkpoints.kept_steps(tmp_path) == ((0, 1) if said else (0, 1, 2))
