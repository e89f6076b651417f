"""Readback of a step's values: how often the loop waits, and on which lines."""

import inspect
import json
import logging

import pytest

pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside
from torch import nn

from csrun.base.errors import UsageError

PASSES = 4


def reading_every_second_step(kit):
    found = []
    for _ in range(PASSES):
        for number, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            kit.optimizer.step()
            if number % 2:
                found.append(loss.item())
    return found


def test_the_lines_that_wait_for_steps_are_counted(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    beside(reading_every_second_step, tmp_path)
    lines, first = inspect.getsourcelines(reading_every_second_step)
    number = first + next(n for n, line in enumerate(lines) if "loss.item()" in line)
    performance = json.loads(next(tmp_path.rglob("performance.json")).read_text())
    ((line, count),) = performance["synchronizations"].items()
    assert line == f"{__file__}:{number}"
    reads = PASSES * (len(Kit().train) // 2)
    assert count == reads
    assert f"The loop waited {count} times for values of steps, at {line}" in caplog.text


def reading_two_terms_late(kit):
    """Loss terms first read in step 5, after its update, as in yunjey's VAE."""
    found = []
    for step, (x, y) in enumerate(kit.train):
        out = kit.model(x)
        fit, penalty = kit.criterion(out, y), out.square().mean()
        loss = fit + 0.1 * penalty
        kit.optimizer.zero_grad()
        loss.backward()
        kit.optimizer.step()
        if step >= 4:
            found += [fit.item(), penalty.item()]
    return found


def test_several_values_are_first_read_after_the_update(tmp_path):
    beside(reading_two_terms_late, tmp_path)


class Views(nn.Linear):
    """Model that also returns a view of its weight."""

    def forward(self, x):
        return super().forward(x), self.weight.view(-1, 3)


def train(kit, before, behind):
    """One pass that reads the view from step 4 on, before and after the update."""
    found, seen = [], []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        out, view = kit.model(x)
        kit.criterion(out, y).backward()
        if step > 3:
            seen.append(before(view))
        kit.optimizer.step()
        if step > 3:
            found += behind(view, seen)
    return found


def test_a_view_of_a_weight_is_pytorchs_before_its_update(tmp_path):
    def loop(kit):
        return train(
            kit,
            lambda view: (view.detach().mean(), view[1].sum().item()),
            lambda view, seen: [*seen[-1], *seen[0]],
        )

    beside(loop, tmp_path, Views(6, 4))


STALE = {
    "itself": (lambda view: view, lambda view, seen: [view.sum().item()]),
    "kept": (lambda view: view.detach(), lambda view, seen: [float(x.numpy()[0, 0]) for x in seen]),
    "a view of it": (lambda view: view[0], lambda view, seen: [seen[-1].detach().sum()]),
}


@pytest.mark.parametrize("read", STALE.values(), ids=STALE)
def test_a_view_of_a_weight_is_refused_behind_its_update(tmp_path, read):
    kit = Kit(Views(6, 4))
    said = r"test_readback.py:\d+: a view of parameter 0.weight is read after optimizer.step"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        train(kit, *read)
