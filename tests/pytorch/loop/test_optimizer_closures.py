"""Closures given to `optimizer.step()`, as wrappers of training loops give them."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import beside  # noqa: E402
from torch import nn, optim  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def step_with_closure(kit, x, y, **clipped):
    """The loss that step() returns of a closure, which runs without gradients enabled around it."""

    def closure():
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        loss.backward()
        if clipped:
            nn.utils.clip_grad_norm_(kit.model.parameters(), **clipped)
        return loss

    with torch.no_grad():
        return kit.optimizer.step(closure)


@pytest.mark.parametrize("clipped", [{}, {"max_norm": 0.1}], ids=["plain", "clipped"])
def test_the_closure_computes_the_step(tmp_path, clipped):
    def loop(kit):
        return [
            step_with_closure(kit, x, y, **clipped).detach() for _ in (0, 1) for x, y in kit.train
        ]

    beside(loop, tmp_path, optimizer=lambda p: optim.AdamW(p, 0.01))


def test_a_closure_that_computes_the_loss_again_is_refused(tmp_path):
    def loop(kit):
        for x, y in kit.train:
            kit.criterion(kit.model(x), y).backward()
            step_with_closure(kit, x, y)
        return [1.0]

    with pytest.raises(UsageError, match="is called twice in this step"):
        beside(loop, tmp_path)
