"""Dynamic loss scaling against its published behaviour and a simple simulation."""

import numpy as np
import pytest

from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.executable.loss_scale import LossScaling, dynamic, invalid_constant


def run(scaling, overflows):
    """States after each step."""
    state, states = scaling.first, []
    for overflow in overflows:
        state = scaling.after(state, not overflow)
        states.append(state)
    return states


@pytest.mark.parametrize("step", range(1, 41))
def test_a_first_overflow_halves_up_to_step_19(step):
    last = run(dynamic("tensorflow"), [False] * (step - 1) + [True])[-1]
    if step < 20:
        assert last == (2.0**14, 0, 0, 1)
    else:
        assert last == (2.0**15, step, 1, 1)


def test_from_1024_it_doubles_at_steps_2000_and_4000():
    scales = [s.scale for s in run(LossScaling(initial=1024.0), [False] * 4001)]
    assert [scales[n - 1] for n in (1999, 2000, 3999, 4000, 4001)] == [1024, 2048, 2048, 4096, 4096]


def test_the_later_dialect_halves_at_each_overflow_and_doubles_past_2000():
    scaling = LossScaling(initial=1024.0, overflow_tolerance=0.0, exceeds=True)
    scales = [s.scale for s in run(scaling, [False] * 2002)]
    assert [scales[n - 1] for n in (2000, 2001)] == [1024, 2048]
    assert run(scaling, [False] * 1500 + [True])[-1] == (512, 0, 0, 1)


def test_constants_of_the_formats():
    assert [dynamic("pytorch", each).maximum for each in (FLOAT16, cbfloat16())] == [2**15, 2**31]
    assert dynamic("pytorch", BFLOAT16).overflow_tolerance == 0
    assert dynamic("tensorflow").maximum == 2**15


@pytest.mark.parametrize("dialect", ["tensorflow", "pytorch"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.06, 0.3])
def test_5000_steps_beside_a_simulation(dialect, share):
    overflows = np.random.default_rng(3).random(5000) < share
    tolerance, limit = {"tensorflow": (0.05, 1999), "pytorch": (0.0, 2000)}[dialect]
    scale, count, bad, skipped, expected = 2.0**15, 0, 0, 0, []
    for overflow in overflows:
        count += 1
        bad += int(overflow)
        if bad > tolerance * count:
            scale, count, bad = scale / 2, 0, 0
        if count > limit:
            scale, count, bad = scale * 2, 0, 0
        scale = min(max(scale, 2.0**-14), 2.0**15)
        skipped += int(overflow)
        expected.append((scale, count, bad, skipped))
    assert run(dynamic(dialect), overflows.tolist()) == expected


def test_a_number_stays():
    assert run(LossScaling(128.0, is_dynamic=False), [True] * 9)[-1] == (128, 0, 0, 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minimum": 2.0**-15}, "min_loss_scale too small"),
        ({"maximum": 1e39}, "max_loss_scale must be at most"),
        ({"overflow_tolerance": -0.1}, "overflow_tolerance must be >= 0"),
        ({"maximum": 0.5, "minimum": 1.0}, "max_loss_scale must be >= min_loss_scale"),
    ],
)
def test_constants_out_of_range(options, message):
    assert message in invalid_constant(LossScaling(**options))
