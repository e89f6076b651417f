"""Views, slices and permutations of tensors."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_rows import check_exact, check_near, row, with_table  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402


def views(x, w):
    a, b = x.transpose(1, 2).reshape(4, -1).chunk(2, dim=1)
    c = w.t()[1:5:2].flatten()[None].expand(4, -1)
    return torch.cat([a.squeeze(), b.unsqueeze(0)[0], c], dim=-1)


def parts(x, w):
    first, *others = x.unbind(1)
    y = torch.stack([first, others[-1]], 2) + x[:, 1, :, None] + x.narrow(1, 0, 2).permute(0, 2, 1)
    return y * w.select(0, 1)[:, None] + x[:, -2:].mT


def heads(x, count):
    return x.view(len(x), x.shape[1], count, -1).transpose(1, 2)


EXACT = with_table(views, parts)


def test_rows_are_pytorchs(tmp_path):
    check_exact(EXACT, tmp_path)


NEAR = {
    "pixel_shuffle": row(lambda x: f.pixel_shuffle(x, 2), 4, 3, 3),
    "einsum": row(lambda x: torch.einsum("bij,bkj->bik", x, x), 3, 4),
    "einsum_heads": row(lambda x: torch.einsum("bhid,bhjd->bhij", heads(x, 2), heads(x, 2)), 3, 8),
    "tril": row(lambda x: torch.tril(x) + torch.triu(x, 1) * 2, 3, 4),
    "roll": row(lambda x: x.roll(1, 1), 3, 4),
    "repeat": row(lambda x: x.repeat(1, 2), 4),
    "repeat_interleave": row(lambda x: x.repeat_interleave(2, 1), 4),
    "chunk_cat": row(lambda x: torch.cat(x.chunk(2, -1)[::-1], -1), 6),
    "outer": row(lambda x: x[:, :, None] * x[:, None, :], 4),
    "flatten": row(lambda x, a, b: b(a(x)), 6, modules=[nn.Unflatten(1, (2, 3)), nn.Flatten()]),
}


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(NEAR, tmp_path)
