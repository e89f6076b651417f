"""Closures passed to `optimizer.step()`, as wrappers of training loops do."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import beside  # noqa: E402
from torch import nn, optim  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def step_with_closure(kit, x, y, **clipped):
    """Loss returned by step() with a closure, in a loop that disables gradients around it."""

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


class Plain(optim.Optimizer):
    """Optimizer that calls its closure as those of torch.optim do."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.move(-1)
        return loss

    def move(self, sign):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=sign * group["lr"])


class Extragradient(Plain):
    """Optimizer that computes gradients again after a step, and steps again with them."""

    @torch.no_grad()
    def step(self, closure=None):
        if closure is None:
            return self.move(-1)
        before = [p.clone() for p in self.param_groups[0]["params"]]
        with torch.enable_grad():
            loss = closure()
        self.move(-1)
        with torch.enable_grad():
            closure()
        for p, value in zip(self.param_groups[0]["params"], before, strict=True):
            p.copy_(value)
        self.move(-1)
        return loss


class OnHost(Extragradient):
    """The same with a required closure."""

    def step(self, closure):
        return super().step(closure)


class Perturbed(Plain):
    """Optimizer that calls its closure after perturbing the weights, as SAM does."""

    @torch.no_grad()
    def step(self, closure=None):
        self.move(1)
        return super().step(closure)


class SGD(optim.SGD):
    """Optimizer class of the script with the name of one that has a rule."""

    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        return super().step(closure)


def closures(kit):
    return [step_with_closure(kit, x, y).detach() for x, y in kit.train]


@pytest.mark.parametrize("kind", [Plain, OnHost, Extragradient])
def test_a_scripts_own_class_calls_its_closure(tmp_path, kind):
    beside(closures, tmp_path, optimizer=kind, rel=1e-7)


def test_a_closure_may_be_called_after_a_write(tmp_path):
    def loop(kit):
        losses = []
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            kit.criterion(kit.model(x), y).backward()
            losses.append(step_with_closure(kit, x, y).detach())
        return losses

    beside(loop, tmp_path, optimizer=Perturbed)


def test_a_class_with_a_rule_that_calls_its_closure_twice_is_refused(tmp_path):
    said = r"test_optimizer_closures.py:\d+: SGD.step\(\) does not call its closure once"
    with pytest.raises(UsageError, match=said):
        beside(closures, tmp_path, optimizer=lambda p: SGD(p, 0.05, momentum=0.9))


class RMSprop(optim.RMSprop):
    """Optimizer class of the script with the name of one that has a rule; requires a closure."""

    def step(self, closure):
        return super().step(closure)


def test_a_class_with_a_rule_that_needs_a_closure_steps_on_the_host(tmp_path):
    beside(closures, tmp_path, optimizer=lambda p: RMSprop(p, 0.01), rel=1e-7)
