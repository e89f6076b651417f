"""Outcome of a case: the losses and weights of csrun beside plain PyTorch's."""

from enum import Enum
from pathlib import Path

import msgspec
import torch
from case import Case
from sides import TIMED_OUT, Finished, Runner, Side, first_error, remove
from sources import NotAvailableError

LOSS_TOLERANCE = 1e-5  # relative
WEIGHT_TOLERANCE = 1e-3  # relative, of all weights' norm; Adam turns rounding of 0 into steps of lr


class Verdict(Enum):
    """End of a case."""

    RUNS = "runs"
    DIFFERS = "differs"
    REFUSED = "refused"
    CRASHES = "crashes"
    TIMES_OUT = "times out"
    NOT_AVAILABLE = "not available"
    PLAIN_FAILS = "fails in plain PyTorch"


class Outcome(msgspec.Struct, frozen=True):
    """Row of the table.

    loss_difference: largest relative one of a step; weight_difference: norm of the difference over
    the norm of all weights; ratio: steps per second over plain PyTorch's.
    """

    case: str
    source: str
    side: Side
    verdict: Verdict
    lines_beyond: int
    message: str = ""
    steps: int = 0
    loss_difference: float | None = None
    weight_difference: float | None = None
    ratio: float | None = None


def measure(runner: Runner, case: Case, side: Side, folder: Path, plain: Finished) -> Outcome:
    """Run a case on csrun and compare it with PyTorch's run, `plain`."""

    def outcome(verdict: Verdict, message: str = "", **found: float) -> Outcome:
        name = case.source.name
        return Outcome(case.name, name, side, verdict, case.lines_beyond, message, **found)

    if plain.code or not plain.losses:
        return outcome(Verdict.PLAIN_FAILS, first_error(plain.errors))
    run_folder = folder / side.value
    found = runner.run(case, side, run_folder)
    try:
        if found.code == TIMED_OUT:
            return outcome(Verdict.TIMES_OUT)
        if found.code or not found.losses:
            message = first_error(found.errors)
            refused = "error: " in message
            return outcome(Verdict.REFUSED if refused else Verdict.CRASHES, message)
        losses = loss_difference(found.losses, plain.losses)
        weights = weight_difference(found, plain)
        same = losses <= LOSS_TOLERANCE and weights <= WEIGHT_TOLERANCE
        ratio = (found.steps_per_s or 0.0) / (plain.steps_per_s or 1.0)
        return outcome(
            Verdict.RUNS if same else Verdict.DIFFERS,
            first_difference(found.losses, plain.losses),
            steps=len(plain.losses), loss_difference=losses, weight_difference=weights, ratio=ratio,
        )  # fmt: skip
    finally:
        remove(run_folder)


def measure_all(runner: Runner, case: Case, sides: list[Side], folder: Path) -> list[Outcome]:
    """Outcomes of a case in several ways of running, beside one run of plain PyTorch."""
    try:
        plain = runner.run(case, Side.PLAIN, folder / "plain")
        return [measure(runner, case, side, folder, plain) for side in sides]
    except NotAvailableError as error:
        name = case.source.name
        verdict = Verdict.NOT_AVAILABLE
        return [Outcome(case.name, name, s, verdict, case.lines_beyond, str(error)) for s in sides]
    finally:
        remove(folder)


def loss_difference(found: list[float], plain: list[float]) -> float:
    """Largest relative difference of two runs' losses, infinite where their number differs."""
    if len(found) != len(plain):
        return float("inf")
    pairs = zip(found, plain, strict=True)
    return max(abs(a - b) / max(abs(b), 1e-6) for a, b in pairs)


def first_difference(found: list[float], plain: list[float]) -> str:
    """The first step whose losses differ by more than the tolerance."""
    if len(found) != len(plain):
        return f"{len(found)} losses, PyTorch has {len(plain)}"
    for step, (ours, theirs) in enumerate(zip(found, plain, strict=True), 1):
        if loss_difference([ours], [theirs]) > LOSS_TOLERANCE:
            return f"step {step}: {ours:.7g}, PyTorch {theirs:.7g}"
    return ""


def weight_difference(found: Finished, plain: Finished) -> float:
    """Norm of the weights' difference over the norm of PyTorch's weights."""
    ours, theirs = torch.load(str(found.weights)), torch.load(str(plain.weights))
    if ours.keys() != theirs.keys():
        return float("inf")
    total = sum(value.double().square().sum() for value in theirs.values())
    pairs = ((ours[name].double(), value.double()) for name, value in theirs.items())
    apart = sum((a - b).square().sum() for a, b in pairs)
    return float((apart / total).sqrt())
