"""Masks of torch.nn.utils.prune written by a loop, against the same loop in PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch.nn.utils import prune  # noqa: E402


class Pruned(Kit):
    """Kit whose weights have masks: of ones, and by magnitude."""

    def __init__(self):
        super().__init__()
        prune.identity(self.model[0], "weight")
        prune.l1_unstructured(self.model[2], "weight", 0.2)


def test_masks_are_written_between_steps(tmp_path):
    def loop(kit):
        losses = kit.train_once()
        layer = kit.model[0]
        for amount in (0.3, 0.2):
            method = prune.L1Unstructured(amount)
            layer.weight_mask.copy_(method.compute_mask(layer.weight_orig, layer.weight_mask))
            losses += kit.train_once()
        return [*losses, layer.weight_mask.sum()]

    beside(loop, tmp_path, kit=Pruned)


def test_another_model_is_pruned_in_the_block(tmp_path):
    def loop(kit):
        losses = kit.train_once()
        other = torch.nn.Linear(4, 4)
        prune.random_unstructured(other, "weight", 0.5)
        return [*losses, other.weight_mask.sum()]

    beside(loop, tmp_path)
