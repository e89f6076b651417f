"""Arithmetic, activations, rounding and trigonometry, forward and backward."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside  # noqa: E402
from support.torch_rows import check_exact, check_near, named, row, step, with_table  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributions import Beta, StudentT  # noqa: E402
from torch.nn import functional as f  # noqa: E402


def arithmetic(x, w):
    y = (x + 2 * w - 0.5) / (w * w + 1.5) - (1 - x) ** 2 + torch.rsqrt(x.abs() + 1)
    y = y * torch.exp(-x.clamp(-1, 0.5)) + torch.log1p(w.square()) - torch.sqrt(x * x + 1)
    return torch.where(x > w, y, -y) + torch.maximum(x, w) + (x**3).masked_fill(x < 0, 0.25)


def activations(x, w):
    y = f.relu(x) + f.gelu(x) + f.gelu(w * x, approximate="tanh") + f.silu(x) + torch.tanh(w)
    y = y + torch.sigmoid(x) + f.softplus(x) + f.elu(x) + f.leaky_relu(x, 0.1)
    return y + f.hardtanh(x) + f.logsigmoid(w).abs() + f.softshrink(x * w, 0.1)


def trigonometry(x, w):
    y = torch.sin(x) * torch.cos(w) + torch.tan(x / 4) + torch.atan(x) + torch.atan2(x, w)
    y = y + torch.asin(torch.tanh(x)) + torch.acos(torch.tanh(w)) + torch.erf(x) + torch.erfc(w)
    return y + torch.expm1(x / 2) + torch.exp2(w) + torch.log2(x.abs() + 1) + torch.logaddexp(x, w)


def signs(x, w):
    y = torch.copysign(x, w) + x * torch.signbit(w) + torch.hypot(x, w) + w.hypot(w)
    y = y + torch.fmax(x, w) * torch.fmin(x, w).masked_fill(x < w, 0.5) + torch.angle(x) * w
    return y + f.hardshrink(x, 0.3) * w + torch.copysign(w, -0.0)


def roundings(x, w):
    y = x * torch.floor(w) + w * torch.round(x, decimals=1) + x % (w.abs() + 0.5)
    y = y + torch.fmod(x, w.abs() + 0.5) + x * (x.detach() // 0.5) + x.frac() + w * x.ceil().trunc()
    return y + f.softplus(x, 3, 0.2) + f.celu(x, 0.7)


def in_place(x, w):
    y = x + 1
    y += w
    y = f.relu(y, inplace=True) * w
    y.mul_(0.5).clamp_(min=-0.25)
    return y


def choice_by_one_number(x):
    """Selection by a scalar, which must not overwrite the other operand."""
    return x.masked_fill(torch.zeros(3, 1, dtype=torch.bool), 0.5)


EXACT = {
    **with_table(arithmetic, activations, trigonometry, signs, roundings, in_place),
    **named(choice_by_one_number),
}


def test_rows_are_pytorchs(tmp_path):
    check_exact(EXACT, tmp_path)


def infinities(x):
    """Rows with NaN and infinity."""
    places = torch.arange(x.shape[-1]).expand(x.shape)
    x = x.detach().masked_fill(places == 0, torch.nan)
    return x.masked_fill(places == 1, torch.inf).masked_fill(places == 2, -torch.inf)


NEAR = {
    "clip": row(lambda x: x.clip(-0.5, 0.5) + torch.minimum(x, x * 2), 4),
    "lerp": row(lambda x: torch.lerp(x, x * x, 0.3), 4),
    "glu": row(lambda x: f.glu(x), 6),
    "prelu": row(lambda x, p: p(x), 4, 5, modules=[nn.PReLU()]),
    "no_numbers": row(
        lambda x: torch.where(infinities(x).isfinite(), x, 2) * infinities(x).nan_to_num(3, 4, 5), 5
    ),
}


def quantized(x):
    """Fake quantization with one scale, as number and tensor, and with one per channel."""
    scales, zeros = torch.linspace(0.125, 0.5, 4), torch.arange(4, dtype=torch.int32)
    x = x.where(torch.arange(4) != 2, torch.nan)
    y = torch.fake_quantize_per_tensor_affine(x, 0.25, 1, -4, 5)
    y = y + torch.fake_quantize_per_tensor_affine(x, scales[1:2], zeros[1:2], -1, 2)
    return y + torch.fake_quantize_per_channel_affine(x, scales, zeros, 2, -4, 5)


NEAR.update(
    {
        "quantized": row(quantized, 3, 4),
        "lgamma": row(lambda x: torch.lgamma(x * 3) + torch.lgamma(x.exp() * 9), 5),
        # whose derivative PyTorch computes to ten digits where x is small
        "digamma": row(lambda x: x * torch.digamma(x.detach() * 3) + torch.digamma(40 + x), 5),
        "polygamma": row(lambda x: x * torch.polygamma(1, 60 + x.detach()), 5),
        "beta": row(lambda x: Beta(x.exp(), x.sigmoid()).log_prob(x.sigmoid()), 5),
        "student": row(lambda x: StudentT(2 + x.exp(), x, x.exp()).log_prob(x[0]), 5),
    }
)


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(NEAR, tmp_path)


def test_images_of_bytes_are_made_floats(tmp_path):
    class Bytes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            return self.linear(x.permute(0, 2, 1).float() / 255)

    batch = (torch.randint(0, 256, (4, 6, 3), dtype=torch.uint8),)
    pair = Beside(Bytes(), batch, step, tmp_path)
    pair.batch = (batch[0].int(),)  # as the run's streamers give it
    compiled, _ = pair.ours()
    pair.batch = batch
    assert compiled == pytest.approx(pair.theirs()[0].item(), rel=1e-5)
