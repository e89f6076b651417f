"""Answers that libraries get while a step is recorded."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import record  # noqa: E402
from torch import fx, nn  # noqa: E402


def test_a_traced_tensor_is_a_graphs_value_to_a_library_that_asks():
    answers, proxy = [], fx.Proxy

    class Asking(nn.Linear):
        def forward(self, x):
            asked = (x, self.weight, torch.ones(2), 2)
            answers.extend(isinstance(each, fx.Proxy) for each in asked)
            answers.append(torch.jit.is_tracing())  # sizes are numbers here
            return super().forward(x)

    def step(model, batch):
        loss = model(batch[0]).sum()
        loss.backward()
        return loss

    record(Asking(3, 2), (torch.ones(4, 3),), step)
    assert answers == [True, False, False, False, False]
    assert fx.Proxy is proxy
