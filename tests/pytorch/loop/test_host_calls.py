"""Calls of the model on the loop's own tensors: PyTorch's values, with the current weights."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def estimated(kit):
    torch.manual_seed(2)
    own, labels, found = torch.randn(9, 6).double(), torch.randint(4, (9,)), []
    for step, (x, y) in enumerate(kit.train):
        if step in (0, 2, 5):
            kit.model.eval()
            with torch.no_grad():
                found.append(cross_entropy(kit.model(own), labels))
            kit.model.train()
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()
    with torch.no_grad():
        return [*found, kit.model(own).sum()]


@pytest.mark.parametrize("fast", [True, False])
def test_the_model_is_called_on_the_loops_own_tensors(tmp_path, fast):
    beside(estimated, tmp_path, settings={"fast": fast})


def normed():
    return nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 4)


@pytest.mark.parametrize("fast", [True, False])
def test_a_batch_norm_in_training_updates_its_statistics_there(tmp_path, fast):
    """Alternating with trainings and evaluations on the wafer."""

    def loop(kit):
        torch.manual_seed(2)
        own, found = torch.randn(9, 6).double(), []
        for _ in range(2):
            for x, y in kit.train:
                kit.update(kit.criterion(kit.model(x), y))
                with torch.no_grad():
                    found += [
                        kit.model(own).sum(),
                        *(b.double().sum() for b in kit.model.buffers()),
                    ]
            with torch.no_grad():
                for x, y in kit.val:  # in training mode
                    found.append(kit.criterion(kit.model(x), y))
                found.append(kit.model(own).sum())
            kit.model.eval()
            with torch.no_grad():
                found += [
                    kit.model(own).sum(),
                    *(kit.criterion(kit.model(x), y) for x, y in kit.val),
                ]
            kit.model.train()
        return [*found, *kit.train_once()]

    beside(loop, tmp_path, *normed(), settings={"fast": fast})


def test_update_bn_over_a_loader_of_the_loops_own(tmp_path):
    def loop(kit):
        found = kit.train_once()
        own = DataLoader(TensorDataset(kit.train.dataset.tensors[0]), 8)
        torch.optim.swa_utils.update_bn(own, kit.model)
        kit.model.eval()
        with torch.no_grad():
            return [*found, *(kit.criterion(kit.model(x), y) for x, y in kit.val)]

    beside(loop, tmp_path, *normed())


def test_a_batch_norm_in_training_is_refused_within_a_step(tmp_path):
    kit = Kit(*normed())
    said = r"within a step, and writes its buffer 1\.\w+: call it after optimizer.step"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for x, y in kit.train:
            loss = kit.criterion(kit.model(x), y)
            with torch.no_grad():
                kit.model(torch.randn(5, 6).double())
            kit.update(loss)
