"""Buffers created in forward."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import beside  # noqa: E402
from torch import nn  # noqa: E402


class Slopes(nn.Linear):
    """Layer that creates a buffer from another one in its first forward, as ALiBi's biases."""

    def __init__(self):
        super().__init__(6, 4)
        self.register_buffer("slopes", torch.arange(4, dtype=torch.float64))
        self.register_buffer("bias_of", None, persistent=False)

    def forward(self, x):
        if self.bias_of is None:
            self.register_buffer("bias_of", self.slopes * 2 - 1, persistent=False)
        return super().forward(x) + self.bias_of


def test_a_buffer_that_forward_makes_of_buffers(tmp_path):
    beside(lambda kit: kit.train_once() + kit.train_once(), tmp_path, Slopes())
