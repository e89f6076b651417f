"""Images drawn to other sizes, transposed convolutions, turned axes and running sums."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.base.mode import ExecutionMode  # noqa: E402


class Drawing(nn.Module):
    """A function of a convolution's images [4, 4, 5, 6], then a transposed one over them."""

    def __init__(self, function, **options):
        super().__init__()
        self.conv, self.function = nn.Conv2d(2, 4, 3, padding=1), function
        self.back = nn.ConvTranspose2d(4, 6, 3, **options)

    def forward(self, x):
        return self.back(self.function(self.conv(x)).tanh())


class Lines(nn.Module):
    """The same over one axis."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.function = nn.Conv1d(2, 4, 3), function
        self.back = nn.ConvTranspose1d(4, 3, 4, stride=3)

    def forward(self, x):
        return self.back(self.function(self.conv(x.flatten(2))))


def step(model, batch):
    """A scalar of all values of the result, each with a slope of its own."""
    model.zero_grad()
    out = model(batch[0])
    slopes = torch.linspace(-1, 2, out[0].numel()).double().view(out[0].shape)
    loss = (out * slopes * (batch[1].view(4, *out[0].ndim * [1]) - 1.5)).sum() / 7
    loss.backward()
    return loss


def drawn(**options):
    return lambda x: f.interpolate(x, **options)


CASES = {
    "nearest": lambda: Drawing(drawn(scale_factor=2), stride=2),
    "nearest of sizes": lambda: Drawing(drawn(size=(3, 13)), stride=2, output_padding=1),
    "nearest by an odd scale": lambda: Drawing(drawn(scale_factor=(1.7, 0.6))),
    "bilinear": lambda: Drawing(
        drawn(scale_factor=2, mode="bilinear"), stride=(2, 1), padding=1, groups=2
    ),
    "bilinear of sizes": lambda: Drawing(drawn(size=(4, 11), mode="bilinear"), bias=False),
    "bilinear by an odd scale": lambda: Drawing(drawn(scale_factor=1.4, mode="bilinear")),
    "bilinear, aligned": lambda: Drawing(
        drawn(size=(9, 1), mode="bilinear", align_corners=True), dilation=2
    ),
    "lines": lambda: Lines(drawn(scale_factor=2)),
    "lines between": lambda: Lines(drawn(size=31, mode="linear")),
    "turned": lambda: Drawing(lambda x: x.flip(-1, 1) + x.flip(2)),
    "summed": lambda: Drawing(lambda x: x.cumsum(1) + x.cumsum(-1)),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_pytorchs(tmp_path, name):
    torch.manual_seed(0)
    model, batch = CASES[name]().double(), (torch.randn(4, 2, 5, 6).double(), torch.arange(4))
    Beside(model, batch, step, tmp_path, ExecutionMode.WEIGHT_STREAMING).check(1e-12, 1e-11)
