"""Learning rates set after a value of the step was read."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402

WARM_UP = 4


def scheduled(kit, first_read=1):
    """Warm-up that sets the rate just before `step()`, with the loss read before `backward()`."""
    losses, numbers = [], iter(range(1, 13))
    for _ in range(2):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            number = next(numbers)
            losses.append(loss.item() if number >= first_read else 0)
            loss.backward()
            kit.optimizer.param_groups[0]["lr"] = 0.2 * min(number**-0.5, number * WARM_UP**-1.5)
            kit.optimizer.step()
    return losses


def test_a_step_takes_the_rate_that_is_set_after_a_read(tmp_path, caplog):
    caplog.set_level("INFO", "csrun")
    beside(scheduled, tmp_path)
    (said,) = (line for line in caplog.messages if "each step is recorded" in line)
    assert "test_late_rates.py:" in said
    assert "lr or weight_decay change between a read and optimizer.step()" in said


def test_a_later_first_read_is_refused(tmp_path):
    kit = Kit()
    said = r"test_late_rates.py:\d+: lr, weight_decay or param_groups have changed .*fast=False"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        scheduled(kit, first_read=6)


def test_all_steps_may_be_recorded_instead(tmp_path):
    beside(lambda kit: scheduled(kit, first_read=6), tmp_path, settings={"fast": False})
