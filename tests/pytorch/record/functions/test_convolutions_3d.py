"""3-D convolutions, plain and transposed, against PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_rows import check_near, row  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def volumes(kind, *given, **options):
    """Function of a convolution's volumes [4, 4, 5, 6, 7]."""
    return row(lambda x, conv: conv(x), 4, 5, 6, 7, modules=(kind(4, 6, *given, **options),))


ROWS = {
    "plain": volumes(nn.Conv3d, 3),
    "strided": volumes(nn.Conv3d, (2, 3, 1), stride=(2, 1, 3), padding=(1, 2, 0), groups=2),
    "same": volumes(nn.Conv3d, (2, 3, 4), padding="same", dilation=(2, 1, 1), bias=False),
    "circular": volumes(nn.Conv3d, 3, padding=1, padding_mode="circular"),
    "one_volume": row(
        lambda x, c, t: t(c(x[0])), 2, 4, 5, 6,
        modules=(nn.Conv3d(2, 3, 2), nn.ConvTranspose3d(3, 2, 2)),
    ),
    "transposed": volumes(nn.ConvTranspose3d, 3, stride=2, padding=1, output_padding=1, groups=2),
    "transposed_dilated": volumes(nn.ConvTranspose3d, (3, 2, 1), dilation=(2, 1, 1), bias=False),
}  # fmt: skip


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(ROWS, tmp_path)
