"""Hooks of optimizer.step(), and step functions replaced by the script, as in PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.optim.optimizer import (  # noqa: E402
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from csrun.base.errors import UsageError  # noqa: E402


def halve(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        group["lr"] *= 0.9


def clip(optimizer, args, kwargs):
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)


@pytest.mark.parametrize(
    "register",
    [
        lambda o: o.register_step_post_hook(halve),
        lambda o: o.register_step_pre_hook(clip),
        lambda o: register_optimizer_step_post_hook(halve),
        lambda o: register_optimizer_step_pre_hook(clip),
    ],
    ids=["post", "pre", "global post", "global pre"],
)
def test_hooks_are_called_in_each_step(tmp_path, register):
    def loop(kit):
        handle = register(kit.optimizer)
        try:
            return kit.train_once() + kit.train_once()
        finally:
            handle.remove()

    beside(loop, tmp_path)


def test_a_post_hook_reads_the_weights_of_its_step(tmp_path):
    def loop(kit):
        found = []
        weight = kit.model[0].weight
        kit.optimizer.register_step_post_hook(lambda *_: found.append(weight.norm().item()))
        kit.train_once()
        assert len(found) == 6
        return found

    beside(loop, tmp_path)


def test_a_step_that_is_replaced_in_the_block_is_called(tmp_path):
    def loop(kit):
        own, optimizer = kit.optimizer.step, kit.optimizer

        def step(*args):
            own(*args)
            halve(optimizer, args, {})

        optimizer.step = step
        return kit.train_once()

    beside(loop, tmp_path)


def test_a_scheduler_made_before_the_block_is_no_replacement(tmp_path):
    class Scheduled(Kit):
        def __init__(self, *layers, **options):
            super().__init__(*layers, **options)
            self.scheduler = optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def loop(kit):
        return kit.train_once(lambda step: kit.scheduler.step() if step else None)

    beside(loop, tmp_path, kit=Scheduled)


def test_a_step_that_was_replaced_before_the_block_is_refused(tmp_path):
    kit = Kit()
    own = kit.optimizer.step
    kit.optimizer.step = lambda *args: own(*args)
    said = r"test_optimizer_hooks.py:\d+: optimizer.step was replaced before the Session's block"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
