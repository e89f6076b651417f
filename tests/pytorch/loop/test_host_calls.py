"""The model on the loop's own tensors: PyTorch's values, of the weights after the last step."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

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


def test_a_batch_norm_in_training_is_refused_there(tmp_path):
    kit = Kit(nn.Linear(6, 4), nn.BatchNorm1d(4))
    said = r"writes its buffer 1\.\w+: call model.eval\(\) before it"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
        with torch.no_grad():
            kit.model(torch.randn(5, 6).double())
