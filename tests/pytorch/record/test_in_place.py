"""In-place writes of forward: into views, into tensors that have views, and into buffers."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside  # noqa: E402
from support.torch_loops import Kit, beside  # noqa: E402
from support.torch_rows import check_exact, named, step  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

from csrun.base.mode import ExecutionMode  # noqa: E402


def slices(x):
    y = x * 1
    y[:, 0] = 0
    y[:, :, 1:3] *= 2
    y[:, -1, ::2] += x[:, 0, ::2]
    return y


def through_several_views(x):
    y = x * 1
    y.view(4, 18)[:, 3:6].mul_(3)
    y.transpose(1, 2)[:, 2].add_(x[:, :, 0])
    y.unsqueeze(1)[:, 0, 1].fill_(0.5)
    y[:, :, :3].copy_(y[:, :, 3:] * 2)
    return y


def shifted_right(x):
    """Labels shifted to the right, as in T5 and BART."""
    y = x.new_zeros(x.shape)
    y[:, 1:] = x[:, :-1].clone()
    y[:, 0] = 0.25
    return y


def views_of_what_is_written(x):
    y = x * 1
    column, rest = y[:, :, 0], y[:, 1:]
    y.mul_(2)
    column.add_(1)
    return y + rest.sum(1, True) + column[..., None]


def diagonals(x):
    y = x[:, :, :3] * 1
    y.diagonal(dim1=1, dim2=2).zero_()
    y.permute(0, 2, 1)[:, 1] = x[:, :, 5]
    return y


def circular_padding(x):
    return nn.functional.pad(x, (2, 1), mode="circular")


def zeros_of_forward(x):
    """Tensors created in forward, with views from before and after the first write."""
    y, sums = torch.zeros(4, 3, 6).double(), torch.tensor(0.5).double()
    first, rows = y[:, 0], torch.arange(12).view(4, 3).double()
    rows[1:, torch.tensor([0, 2])] += x[1:, :2, 0]
    for place in range(3):
        y[:, place] = x[:, place] * 2
        sums += x[:, place].mean()
    y[:, 0].mul_(3)
    y.view(-1)[5::7] = y.sum(0)[0, 0]
    return y * sums + first[:, None] + rows.cumsum(1)[..., None]


def into_given_tensors(x):
    y, sums, given = torch.zeros_like(x), x.new_zeros(4, 6), x.detach()
    torch.sum(given, 1, out=sums)
    f.normalize(given, dim=1, out=y)  # torch.div
    ones = torch.eye(4, 6, out=torch.empty_like(sums))  # as AdaLoRA of peft
    return x * y + (sums + ones)[:, None]


def returned_from_forward(x):
    y = torch.ones(4, 3)
    y = y.double()
    y[:, 1:].add_(x[:, 0, :2])
    return y


EXACT = named(
    slices,
    through_several_views,
    shifted_right,
    views_of_what_is_written,
    diagonals,
    circular_padding,
    zeros_of_forward,
    into_given_tensors,
    returned_from_forward,
)


def test_rows_are_pytorchs(tmp_path):
    check_exact(EXACT, tmp_path)


class Keeping(nn.Module):
    """Network with running means: one buffer is replaced, one is written in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("mean", torch.ones(6))
        self.register_buffer("largest", torch.zeros(6))

    def forward(self, x):
        x = self.linear(x - self.mean)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        self.largest.mul_(0.5).add_(x.detach().amax((0, 1)))
        return x


@pytest.mark.parametrize("mode", ExecutionMode)
def test_buffers_that_forward_changes_are_state(tmp_path, mode):
    torch.manual_seed(0)
    model = Keeping().double()
    batch = (torch.randn(4, 3, 6).double(),)
    pair = Beside(model, batch, step, tmp_path, mode)
    mean = model.mean
    machine = pair.machine()
    pair.ours(machine)
    step(model, batch)
    assert model.mean is not mean  # which recording did not do
    for name in ("mean", "largest"):
        ours = torch.from_numpy(machine.state[f"model/{name}"])
        torch.testing.assert_close(ours, getattr(model, name), rtol=1e-12, atol=1e-14)


def test_a_spectral_norm_is_pytorchs(tmp_path):
    """Its power iteration writes two buffers in each training step."""
    layer = parametrizations.spectral_norm(nn.Linear(6, 4))
    beside(lambda kit: kit.train_once(), tmp_path, layer)


class Collecting(nn.Module):
    """Network that collects outputs and its loss in tensors it creates."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x, y):
        outs, loss = x.new_zeros(len(x), 2, 4), torch.zeros((), dtype=torch.float64)
        rows = torch.zeros(len(x), 2, 4, dtype=torch.float64)
        for place in range(2):
            outs[:, place] = rows[:, place] = self.inner(x * (place + 1)).tanh()
            loss += f.cross_entropy(outs[:, place], y)
        return loss, rows


def test_forward_writes_into_tensors_that_it_makes(tmp_path):
    def loop(kit):
        found = []
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            loss, rows = kit.model(x, y)
            loss.backward()
            kit.optimizer.step()
            found += [loss.item(), rows.abs().mean().item()]
        return found

    class Kept(Kit):
        def __init__(self):
            super().__init__(Collecting())
            self.model.forward = lambda *given: self.model[0](*given)

    beside(loop, tmp_path, kit=Kept)


class Filled(torch.autograd.Function):
    """Identity whose backward pass writes the gradient into a tensor that it creates."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        found = torch.zeros(gradient.shape, dtype=gradient.dtype)
        found[0] = gradient[0]
        found[1:] = gradient[1:]
        return found


class FilledLinear(nn.Linear):
    def forward(self, x):
        return Filled.apply(super().forward(x))


def test_a_backward_pass_writes_into_a_tensor_that_it_creates(tmp_path):
    beside(Kit.train_once, tmp_path, FilledLinear(6, 4))
