"""Values of a loop's steps that are read: how often the loop waits for them, and where."""

import inspect
import json
import logging

import pytest

pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside

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
