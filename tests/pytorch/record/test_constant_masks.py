"""Boolean index masks with constant values."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import beside  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402


def contrastive(kit):
    """Loss of SimCLR: similarities of all pairs except for the diagonal."""
    others = ~torch.eye(8, dtype=torch.bool)
    losses = []
    for x, _ in kit.train:
        z = torch.nn.functional.normalize(kit.model(x), dim=1)
        pairs = (z @ z.T)[others].view(8, 7)
        loss = cross_entropy(pairs / 0.5, torch.arange(8) % 7)
        kit.optimizer.zero_grad()
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def test_a_mask_of_the_loop_is_an_index(tmp_path):
    beside(contrastive, tmp_path)
