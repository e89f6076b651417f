"""Learning rate schedules against their formulas."""

from math import cos, pi

import pytest

pytest.importorskip("torch", reason="the front end is PyTorch's")

from types import SimpleNamespace

from csrun.pytorch.framework import schedules as s

CASES = {
    "constant": (s.Constant, (0.3,), lambda n: 0.3),
    "linear": (s.Polynomial, (0.5, 0.1, 8), lambda n: 0.5 - 0.4 * n / 8 if n < 8 else 0.1),
    "square": (s.Polynomial, (0.5, 0.1, 8, 2.0), lambda n: 0.4 * (1 - n / 8) ** 2 + 0.1),
    "exponential": (s.Exponential, (0.5, 4, 0.9), lambda n: 0.5 * 0.9 ** (n / 4)),
    "staircase": (s.Exponential, (0.5, 4, 0.9, True), lambda n: 0.5 * 0.9 ** (n // 4)),
    "inverse": (
        s.InverseExponentialTimeDecay,
        (0.5, 2, 4, 0.9),
        lambda n: 0.5 / (1 + 0.9 * n**2 / 4),
    ),
    "cosine": (s.CosineDecay, (0.5, 0.1, 8), lambda n: 0.1 + 0.2 * (1 + cos(pi * n / 8))),
    "annealing": (s.CosineAnnealing, (0.5, 5, 0.1), lambda n: 0.1 + 0.2 * (1 + cos(pi * n / 5))),
    "step": (s.Step, (0.5, 0.9, 3), lambda n: 0.5 * 0.9 ** (n // 3)),
    "multistep": (s.MultiStep, (0.5, 0.9, [2, 5]), lambda n: 0.5 * 0.9 ** ((n >= 2) + (n >= 5))),
    "lambda": (s.Lambda, (0.5,), lambda n: 0.5 * 0.95**n),
}


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_is_its_formula(case):
    kind, options, formula = CASES[case]
    made = kind(SimpleNamespace(schedules=[]), *options)
    assert [made.rate(n) for n in range(8)] == pytest.approx([formula(n) for n in range(8)])


@pytest.mark.parametrize("counts_globally", [False, True])
def test_schedules_follow_each_other(counts_globally):
    optimizer = SimpleNamespace(schedules=[])
    s.Polynomial(optimizer, 0.0, 1.0, 4, disable_lr_steps_reset=counts_globally)
    s.Constant(optimizer, 2.0, 3)
    s.Polynomial(optimizer, 1.0, 0.0, 100, disable_lr_steps_reset=counts_globally)
    found = [s.rate_at(optimizer.schedules, n) for n in range(10)]
    began = 0 if counts_globally else 7
    last = [1 - (n - began) / 100 for n in range(7, 10)]
    assert found == pytest.approx([0, 0.25, 0.5, 0.75, 2, 2, 2, *last])
