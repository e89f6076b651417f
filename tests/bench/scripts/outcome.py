"""Outcome of a case: the losses and weights of csrun compared with plain PyTorch's."""

from dataclasses import dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
import torch
from case import Case
from sides import TIMED_OUT, Finished, Runner, Side, first_error, remove
from sources import NotAvailableError

LOSS_TOLERANCE = 1e-5  # relative
WEIGHT_TOLERANCE = 1e-3  # relative, of all weights' norm; Adam turns rounding of 0 into steps of lr
FLOAT64_TOLERANCE = 1e-8
NOISE_SEEDS = ("1", "2", "3")
# csrun rounds in each operator, the noise is of the initial weights only; a defect of 1e-12 in the
# first step is beyond it in float64
NOISE_FACTOR = 100.0
OTHER_DRAWS = "other random numbers"


class Verdict(Enum):
    """End of a case."""

    RUNS = "runs"
    IN_FLOAT64 = "equal in float64"
    UNSTABLE = "unstable"
    DIFFERS = "differs"
    REFUSED = "refused"
    CRASHES = "crashes"
    TIMES_OUT = "times out"
    NOT_AVAILABLE = "not available"
    PLAIN_FAILS = "fails in plain PyTorch"


class Outcome(msgspec.Struct, frozen=True):
    """Row of the table.

    loss_difference: largest relative one of a step, float64_difference: of a run in float64;
    weight_difference: norm of the difference over the norm of all weights; ratio: steps per second
    over plain PyTorch's; recorded: steps that were recorded after the first ones;
    noise_difference: that between PyTorch runs with and without rounding errors in the
    initial weights.
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
    float64_difference: float | None = None
    noise_difference: float | None = None
    recorded: int | None = None


def measure(runner: Runner, case: Case, side: Side, folder: Path, plain: Finished) -> Outcome:
    """Run a case on csrun and compare it with PyTorch's run, `plain`."""

    def outcome(verdict: Verdict, message: str = "", **found: Any) -> Outcome:
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
        steps, rates = len(plain.losses), (found.steps_per_s, plain.steps_per_s)
        measured: dict[str, Any] = {"steps": steps, "loss_difference": losses}
        measured["weight_difference"], measured["recorded"] = weights, found.recorded
        measured["ratio"] = (rates[0] or 0.0) / (rates[1] or 1.0)
        if case.draws:
            finite = isfinite(losses) and all(map(isfinite, found.losses))
            verdict = Verdict.RUNS if finite else Verdict.DIFFERS
            return outcome(verdict, OTHER_DRAWS, **measured)
        if losses <= LOSS_TOLERANCE and weights <= WEIGHT_TOLERANCE:
            return outcome(Verdict.RUNS, **measured)
        message = first_difference(found.losses, plain.losses)
        wide = measure_in_float64(runner, case, side, folder)
        if wide is None:
            compared = compare_with_noise(runner, case, folder, found.losses, plain.losses)
            measured["noise_difference"] = compared.noise
            return outcome(compared.verdict, f"{message}; no run in float64", **measured)
        measured["float64_difference"], measured["noise_difference"] = wide.difference, wide.noise
        return outcome(wide.verdict, f"float32: {message}", **measured)
    finally:
        remove(run_folder)


def measure_all(runner: Runner, case: Case, sides: list[Side], folder: Path) -> list[Outcome]:
    """Outcomes of a case in several ways of running, compared with one run of plain PyTorch."""
    try:
        plain = runner.run(case, Side.PLAIN, folder / "plain")
        return [measure(runner, case, side, folder, plain) for side in sides]
    except NotAvailableError as error:
        name = case.source.name
        verdict = Verdict.NOT_AVAILABLE
        return [Outcome(case.name, name, s, verdict, case.lines_beyond, str(error)) for s in sides]
    finally:
        remove(folder)


@dataclass(frozen=True)
class LossComparison:
    """Comparison of a run with PyTorch's.

    difference: largest relative one of a step's loss; noise: that between
    PyTorch runs with and without rounding errors in the initial weights, if it was measured.
    """

    verdict: Verdict
    difference: float
    noise: float | None = None


def measure_in_float64(
    runner: Runner, case: Case, side: Side, folder: Path
) -> LossComparison | None:
    """Compare in float64, and where that differs, with PyTorch's own sensitivity to rounding.

    None where the script does not run in float64.
    """

    def losses_of(each: Side) -> list[float]:
        path = folder / f"{each.value}-float64"
        found = runner.run(case, each, path, "float64").losses
        remove(path)
        return found

    plain, found = losses_of(Side.PLAIN), losses_of(side)
    if not plain or not found:
        return None
    difference = loss_difference(found, plain)
    if difference <= FLOAT64_TOLERANCE or len(found) != len(plain):
        verdict = Verdict.IN_FLOAT64 if difference <= FLOAT64_TOLERANCE else Verdict.DIFFERS
        return LossComparison(verdict, difference)
    return compare_with_noise(runner, case, folder, found, plain, "float64")


def compare_with_noise(
    runner: Runner, case: Case, folder: Path, found: list[float], plain: list[float],
    dtype: str = "float32",
) -> LossComparison:  # fmt: skip
    """Compare with PyTorch's own sensitivity to rounding errors in its initial weights."""
    noisy = []
    for seed in NOISE_SEEDS:
        path = folder / f"noise-{dtype}-{seed}"
        noisy.append(runner.run(case, Side.PLAIN, path, dtype, seed).losses)
        remove(path)
    verdict = Verdict.UNSTABLE if is_within_noise(found, plain, noisy) else Verdict.DIFFERS
    own = max(loss_difference(each, plain) for each in noisy)
    return LossComparison(verdict, loss_difference(found, plain), own)


def is_within_noise(found: list[float], plain: list[float], noisy: list[list[float]]) -> bool:
    """True if PyTorch's noisy losses have differed nearly as much by each step."""
    if len({len(each) for each in (found, plain, *noisy)}) != 1:
        return False
    own = 0.0
    for step, (ours, theirs) in enumerate(zip(found, plain, strict=True)):
        own = max(own, *(loss_difference([each[step]], [theirs]) for each in noisy))
        if loss_difference([ours], [theirs]) > max(FLOAT64_TOLERANCE, NOISE_FACTOR * own):
            return False
    return True


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
    squared_difference = sum((a - b).square().sum() for a, b in pairs)
    return float((squared_difference / total).sqrt())
