"""Fourier transforms and complex arithmetic."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit  # noqa: E402
from support.torch_rows import check_near, row  # noqa: E402
from torch import fft, nn  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def mixed(x):
    """Fourier mixing of FNet."""
    return fft.fft(fft.fft(x, dim=-1), dim=-2).real


def filtered(x):
    """Global filter of GFNet."""
    weights = torch.view_as_complex(x[0].view(3, -1, 2))
    return fft.irfft(fft.rfft(x, dim=2)[..., :3] * weights, n=6, dim=2)


def convolved(x):
    spectra = (fft.rfft(each, n=2 * each.shape[-1]) for each in (x, x.flip(-1)))
    return fft.irfft(next(spectra) * next(spectra), n=2 * x.shape[-1])[..., : x.shape[-1]]


def correlated(x):
    found = fft.rfft(x, dim=1)
    return fft.irfft(found * torch.conj(found), n=x.shape[1], dim=1)


def turned(x):
    """Rotary embedding by complex multiplication."""
    turns = torch.polar(torch.ones(3).double(), torch.arange(3.0).double())
    return torch.view_as_real(torch.view_as_complex(x.reshape(4, 3, 3, 2)) * turns).flatten(2)


def arithmetic(x):
    z = torch.complex(x, x.tanh())
    z = z * z + 2 * z / torch.complex(x.exp(), x) - 1j * z.conj() + x - z * x
    return (z.abs() + z.angle() + torch.exp(0.1 * z).imag) * z[:, :1].mean(2, True).real


def products(x):
    z = torch.complex(x, x.cos())
    return (z @ z.mT.conj()).abs() + torch.einsum("bij,kj->bik", z, z[0]).real


def beside_real(x):
    """Real operands combined with complex ones, where their imaginary part is 0."""
    z = torch.complex(x, x.cos())
    found = torch.cat([x, z, 1 - z]) + torch.ones_like(z).repeat(3, 1, 1)
    found = torch.stack([found, found.real], -1)
    found = nn.functional.pad(found, (1, 0), value=2.0)
    return torch.view_as_real(found).flatten(3)


def sizes(x):
    """Absolute values, quotients and angles of numbers whose squares overflow or underflow."""
    z = torch.complex(x, x.cos())
    large, small = z * 1e200, z * 1e-200
    return large.abs() * 1e-200 + (z / large).real * 1e200 + small.sgn().imag


def windows(x):
    given = torch.hann_window(8).double()
    return torch.stft(x.repeat(1, 4), 8, 4, window=given, return_complex=True).abs()


ROWS = {
    **{f.__name__: row(f, 3, 6) for f in (mixed, filtered, convolved, correlated, turned)},
    **{f.__name__: row(f, 3, 5) for f in (arithmetic, products, beside_real, sizes)},
    "windows": row(windows, 5),
    "fftn": row(lambda x: fft.fftn(x, dim=(1, 2), norm="ortho").imag, 3, 5),
    "padded": row(lambda x: fft.fft(x, n=7, norm="forward").abs(), 3, 5),
    "ifft": row(lambda x: fft.ifft(fft.fft(x) * torch.arange(5)).real, 3, 5),
    "irfft2": row(
        lambda x: fft.irfft2(fft.rfft2(x), s=x.shape[-2:]) + fft.rfft2(x).abs().sum(), 3, 5
    ),
    "hfft": row(lambda x: fft.hfft(fft.ihfft(x), n=6), 3, 6),
    "shifted": row(lambda x: fft.fftshift(fft.fft(x)).imag, 6),
}


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(ROWS, tmp_path)


class Turned(nn.Linear):
    """Layer with complex weights."""

    def __init__(self, size):
        super().__init__(size, size)
        self.turns = nn.Parameter(torch.ones(size).cdouble())

    def forward(self, x):
        return (super().forward(x) * self.turns).real


class Tangent(nn.Linear):
    """Layer with a function that is not supported for complex numbers."""

    def forward(self, x):
        h = super().forward(x)
        return torch.complex(h, h).tan().real


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Tangent, "it is not supported for complex numbers"), (Turned, "only constants may be")],
)
def test_other_complex_numbers_are_refused(tmp_path, kind, said):
    layers = nn.Linear(6, 9), kind(9) if kind is Turned else kind(9, 9), nn.Linear(9, 4)
    kit = Kit(*layers)
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
