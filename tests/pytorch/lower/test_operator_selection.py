"""Float type of a program, by the types of the step's tensors."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


class WideBatches(Kit):
    """Float32 model with float64 batches, as from NumPy; one of their tensors is not used."""

    def __init__(self):
        super().__init__()
        self.model = self.model.float()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)
        x, y = self.train.dataset.tensors
        self.train = DataLoader(TensorDataset(x, y, x[:, 0] + 1), 8)


class WithoutLoader(WideBatches):
    """The same with a DataLoader not prepared by csrun."""

    def session(self, folder):
        own = self.train
        session = super().session(folder)
        self.train = own
        return session


def losses(kit, cast):
    found = []
    for x, y, noise in kit.train:
        given = cast(x)
        found += [kit.update(kit.criterion(kit.model(given), y)), noise.sum(), x.double().norm()]
    return found


@pytest.mark.parametrize("kit", [WideBatches, WithoutLoader])
@pytest.mark.parametrize("cast", [lambda x: x.float(), lambda x: (x * 2).to(torch.float32)])
def test_batches_of_float64_are_cast_in_the_loop(tmp_path, kit, cast):
    beside(lambda each: losses(each, cast), tmp_path, kit=kit, rel=1e-5)
