"""Parameters and modules whose names csrun's compiler also uses for values."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402


class Named(nn.Module):
    """Model whose parameters are named as operators, and modules as arrays."""

    def __init__(self):
        super().__init__()
        self.input = nn.Linear(6, 9)
        self.gradient = nn.Linear(9, 9)
        self.mm = nn.Parameter(torch.linspace(-1, 1, 81).reshape(9, 9))
        self.mul = nn.Parameter(torch.ones(9))
        self.embedding = nn.Linear(9, 4)

    def forward(self, x):
        """The logits."""
        return self.embedding(self.gradient(torch.relu(self.input(x) @ self.mm) * self.mul))


def test_names_of_parameters_and_values_are_apart(tmp_path):
    torch.manual_seed(1)
    beside(Kit.train_once, tmp_path, Named())
