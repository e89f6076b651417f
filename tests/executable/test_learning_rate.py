"""Learning-rate schedules against PyTorch, and their warm-up against its definition."""

import msgspec
import pytest

from csrun.cirh.algorithms import SCHEDULES as SCHEDULE_ATTRIBUTES
from csrun.compiler.optimizers import schedule_of
from csrun.executable.learning_rate import (
    SCHEDULES,
    Constant,
    Cosine,
    Exponential,
    Linear,
    PiecewiseConstant,
    Polynomial,
    Schedule,
    ScheduleError,
)
from csrun.nn.optimizer import schedule_attribute

STEPS = 20
PEERS = {
    Constant(0.1): lambda lr, optimizer: lr.ConstantLR(optimizer, factor=1.0),
    Linear(initial_learning_rate=0.1, end_learning_rate=0.02, steps=STEPS): lambda lr, o: (
        lr.LinearLR(o, start_factor=1.0, end_factor=0.2, total_iters=STEPS)
    ),
    Polynomial(initial_learning_rate=0.1, steps=STEPS, power=2.5): lambda lr, o: lr.PolynomialLR(
        o, total_iters=STEPS, power=2.5
    ),
    Exponential(initial_learning_rate=0.1, steps=4, decay_rate=0.5): lambda lr, o: lr.ExponentialLR(
        o, gamma=0.5**0.25
    ),
    PiecewiseConstant(boundaries=(3, 9), values=(0.1, 0.05, 0.025)): lambda lr, o: lr.MultiStepLR(
        o, milestones=[3, 9], gamma=0.5
    ),
}


def their_rates(make, count):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the schedules")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler = make(torch.optim.lr_scheduler, optimizer)
    rates = []
    for _ in range(count):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("schedule", PEERS, ids=lambda s: type(s).__name__)
def test_rates_are_pytorchs_past_the_end_too(schedule):
    rates = [schedule.at(step) for step in range(STEPS + 5)]
    assert rates == pytest.approx(their_rates(PEERS[schedule], STEPS + 5), rel=1e-12, abs=1e-15)


def test_cosine_is_pytorchs_and_then_stays():
    schedule = Cosine(initial_learning_rate=0.1, end_learning_rate=0.01, steps=STEPS)
    theirs = their_rates(lambda lr, o: lr.CosineAnnealingLR(o, STEPS, eta_min=0.01), STEPS + 1)
    assert [schedule.at(step) for step in range(STEPS + 1)] == pytest.approx(theirs, rel=1e-12)
    assert schedule.at(10 * STEPS) == 0.01


@pytest.mark.parametrize("schedule", PEERS, ids=lambda s: type(s).__name__)
def test_a_warm_up_rises_from_zero_and_shifts_what_follows(schedule):
    warm = msgspec.structs.replace(schedule, warmup_steps=4)
    assert [warm.at(step) for step in range(4)] == pytest.approx([0.0, 0.025, 0.05, 0.075])
    assert [warm.at(step + 4) for step in range(30)] == [schedule.at(step) for step in range(30)]


@pytest.mark.parametrize("schedule", PEERS, ids=lambda s: type(s).__name__)
def test_a_schedule_goes_through_the_ir_and_the_programs_text(schedule):
    assert schedule_of(schedule_attribute(schedule)) == schedule
    assert eval(repr(schedule), {s.__name__: s for s in SCHEDULES}) == schedule


def test_the_ir_knows_every_schedule_and_its_numbers():
    ours = {s.__struct_config__.tag: set(s.__struct_fields__) for s in SCHEDULES}
    assert {name: set(numbers) for name, numbers in SCHEDULE_ATTRIBUTES.items()} == ours


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(-0.1), "learning_rate: Expected float >= 0.0, got -0.1"),
        (lambda: Linear(initial_learning_rate=1, end_learning_rate=0, steps=0), "steps: Expected"),
        (lambda: Constant(0.1, warmup_steps=-1), "warmup_steps"),
        (
            lambda: PiecewiseConstant(boundaries=(1,), values=(0.1,)),
            "there must be one more value than boundaries, got 1 values and 1 boundaries",
        ),
        (
            lambda: PiecewiseConstant(boundaries=(5, 5), values=(3.0, 2.0, 1.0)),
            r"boundaries must increase, got \[5, 5\]",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ScheduleError, match=message):
        make()


def test_a_schedule_reads_back_from_json():
    schedule = Polynomial(initial_learning_rate=0.1, steps=5, warmup_steps=2)
    text = msgspec.json.encode(schedule)
    assert msgspec.json.decode(text, type=Schedule) == schedule
