"""Every class of torch.optim.lr_scheduler: learning rates, losses and weights as in PyTorch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.optim import lr_scheduler as schedulers  # noqa: E402
from torch.optim.swa_utils import SWALR  # noqa: E402

PASSES, STEPS = 3, 18
Maker = Callable[[optim.Optimizer], Any]

MADE: dict[str, Maker] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda n: 0.9**n),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda n: 0.95),
    "StepLR": lambda o: schedulers.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [1, 4, 9], 0.5),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 4),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.2, total_iters=5),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, STEPS, 2.0),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 7, 0.001),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(
        o, 0.2, total_steps=STEPS + 1, cycle_momentum=False
    ),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
    "OneCycleLR with momentum": lambda o: schedulers.OneCycleLR(o, 0.2, total_steps=STEPS + 1),
    "CyclicLR with momentum": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 3),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=0),
    "SWALR": lambda o: SWALR(o, 0.02, anneal_epochs=4),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=4), schedulers.ExponentialLR(o, 0.9)], [4]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.5, 4), schedulers.ExponentialLR(o, 0.9)]
    ),
}
QUICK = ("SequentialLR", "ReduceLROnPlateau")
# PyTorch's own: SequentialLR and ChainedScheduler call step() in ways that it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def train(kit: Kit, make: Maker, each_step: bool) -> list[Any]:
    """Return losses and learning rates; the scheduler steps after each step, or after each pass."""
    scheduler, numbers = make(kit.optimizer), []
    is_plateau = isinstance(scheduler, schedulers.ReduceLROnPlateau)

    def go_on(loss: Any) -> None:
        scheduler.step(loss.item()) if is_plateau else scheduler.step()
        numbers.append(kit.optimizer.param_groups[0]["lr"])

    for _ in range(PASSES):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            kit.optimizer.step()
            numbers.append(loss.detach())
            if each_step:
                go_on(loss)
        if not each_step:
            go_on(loss)
    return numbers


def compare(make: Maker, each_step: bool, folder: Path) -> None:
    beside(lambda kit: train(kit, make, each_step), folder, nn.Linear(6, 4))


@pytest.mark.parametrize("name", QUICK)
def test_a_scheduler_of_steps_is_pytorchs(name: str, tmp_path: Path) -> None:
    compare(MADE[name], True, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_a_scheduler_is_pytorchs(name: str, tmp_path: Path) -> None:
    if name not in QUICK:
        compare(MADE[name], True, tmp_path / "steps")
    compare(MADE[name], False, tmp_path / "passes")


def test_each_scheduler_of_pytorch_has_a_case() -> None:
    known = {n for n in schedulers.__all__ if n != "LRScheduler"}
    assert known <= set(MADE)
