"""Lamb, which torch.optim lacks, against the paper's formulas: in PyTorch, and in a Session."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.optimizers import Lamb as Formulas  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402

STEPS = 50


class Network(nn.Module):
    """Network with a zero bias, whose norm does not scale its update."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 4)
        nn.init.zeros_(self.last.bias)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def loop(model, optimizer, loader):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def of_seed():
    torch.manual_seed(7)
    model = Network().double()
    x, y = torch.randn(8 * STEPS, 6).double(), torch.randn(8 * STEPS, 4).double()
    return model, DataLoader(TensorDataset(x, y), 8)


@pytest.mark.parametrize("is_session", [False, True], ids=["pytorch", "session"])
@pytest.mark.parametrize("corrected", [True, False])
def test_fifty_steps_are_the_papers(tmp_path, corrected, is_session):
    options = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-5, "weight_decay": 0.03}
    model, loader = of_seed()
    formulas = Formulas(list(model.parameters()), **options, correct=corrected)
    expected = loop(model, formulas, loader)
    ours, loader = of_seed()
    optimizer = cbtorch.optim.Lamb(ours.parameters(), **options, bias_correction=corrected)
    if is_session:
        cbtorch.initialize(model_dir=tmp_path)
        ours, loader = cbtorch.module(ours), cbtorch.dataloader(loader)
        with cbtorch.Session(ours, optimizer, mode="train"):
            found = loop(ours, optimizer, loader)
    else:
        found = loop(ours, optimizer, loader)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    for our, their in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(our, their, rtol=1e-10, atol=1e-10)


def test_a_closure_gives_its_loss():
    model, _ = of_seed()
    optimizer = cbtorch.optim.Lamb(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 6).double()).square().mean()
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first


@pytest.mark.parametrize("option", [{"lr": -1}, {"betas": (0.9, 1.0)}, {"eps": float("nan")}])
def test_numbers_out_of_range_are_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        cbtorch.optim.Lamb([nn.Parameter(torch.zeros(2))], **option)
