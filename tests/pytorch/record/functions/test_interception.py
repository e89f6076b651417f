"""Results that libraries see while a step is recorded."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside, record  # noqa: E402
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


class Recomputed(torch.autograd.Function):
    """Layer recomputed in its backward pass, as in reversible networks."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x.detach())
        return layer(x).tanh()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x.requires_grad = True
            ctx.layer(x).tanh().backward(grad)
        return x.grad, None


def test_backward_within_a_backward_pass_adds_to_its_gradients(tmp_path):
    class Reversible(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.last(Recomputed.apply(self.first(x), self.last))

    def step(model, batch):
        model.zero_grad()
        loss = model(batch[0]).square().sum()
        loss.backward()
        return loss

    torch.manual_seed(0)
    Beside(Reversible().double(), (torch.randn(4, 3).double(),), step, tmp_path).check(1e-12, 1e-11)
