"""Scaling laws of throughput over workers, fitted to measurements.

Sources: Amdahl 1967 (contention); Gunther 1993, the Universal Scalability Law (coherency);
Williams, Waterman and Patterson 2009, the roofline (a ceiling set by a resource)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, log, sqrt
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from csrun.advice.measurements import Point

NOISE = 0.03  # laws whose errors differ by less are equally good: the simpler one is chosen
PROMISE = 0.05  # limit of a law's extrapolation above the point with the most workers
ROUNDS = 20  # of Gauss-Newton; a handful is enough

Array = NDArray[np.float64]


class LawName(StrEnum):
    """Scaling laws, simplest first."""

    LINEAR = "linear"
    ROOFLINE = "roofline"
    AMDAHL = "Amdahl"
    USL = "universal scalability"


class Law(msgspec.Struct, frozen=True):
    """Samples/s of n workers: rate * n / (1 + sigma (n - 1) + kappa n (n - 1)), at most cap.

    rate: of one worker. sigma: serial fraction. kappa: cost per pair of workers.
    """

    name: LawName
    rate: float
    sigma: float = 0.0
    kappa: float = 0.0
    cap: float | None = None

    def at(self, workers: float) -> float:
        """Return the samples/s of a number of workers, at least one."""
        loss = 1 + self.sigma * (workers - 1) + self.kappa * workers * (workers - 1)
        return min(self.rate * workers / loss, inf if self.cap is None else self.cap)

    @property
    def highest(self) -> float:
        """Maximum samples/s over all numbers of workers."""
        if self.cap is not None:
            return self.cap
        if self.kappa:  # zero of the derivative: Gunther 1993
            return self.at(max(1.0, sqrt(max(0.0, 1 - self.sigma) / self.kappa)))
        return self.rate / self.sigma if self.sigma else inf


class FittedPoint(msgspec.Struct, frozen=True):
    """Point with its fitted value. deviation: undisturbed / fitted - 1.

    measured: as measured. undisturbed: corrected for CPUs used by other work.
    """

    tasks: int
    measured: float
    undisturbed: float
    fitted: float
    deviation: float


class Fit(msgspec.Struct, frozen=True):
    """Law of workers with `cpus` CPUs each, on the measured machine.

    error: leave-one-out error, root mean square of logarithms; None with too few points. ceiling:
    limit of the machine's CPUs by the CPU time per sample; None if a sample takes none.
    """

    cpus: int
    law: Law
    points: tuple[FittedPoint, ...]
    error: float | None
    ceiling: float | None

    def at(self, workers: float) -> float:
        """Return the undisturbed samples/s of a number of workers, at least one."""
        return min(self.law.at(workers), inf if self.ceiling is None else self.ceiling)

    @property
    def left(self) -> float:
        """Fraction of the CPUs left to the workers by other work: median over the points."""
        return median(point.measured / point.undisturbed for point in self.points)

    @property
    def most_tasks(self) -> int:
        """Largest measured number of workers; the law is extrapolated beyond it."""
        return max(point.tasks for point in self.points)


@dataclass(frozen=True)
class _RateSamples:
    """Numbers of workers in ascending order, with their rates."""

    workers: Array
    rates: Array

    def without(self, index: int) -> "_RateSamples":
        return _RateSamples(np.delete(self.workers, index), np.delete(self.rates, index))

    def misses(self, law: Law) -> Array:
        return np.array([log(law.at(n) / x) for n, x in zip(self.workers, self.rates, strict=True)])


def fit(points: Sequence[Point], machine_cpus: int) -> Fit:
    """Fit a law to points measured with the same CPUs per task."""
    ordered = sorted(points, key=lambda point: point.tasks)
    rates = [point.samples_per_s * disturbance(point, machine_cpus) for point in ordered]
    samples = _RateSamples(np.array([point.tasks for point in ordered], float), np.array(rates))
    law, error = _chosen(samples)
    found = Fit(ordered[0].cpus, law, (), error, _ceiling(ordered, machine_cpus))
    fitted = tuple(_fitted_point(*pair, found) for pair in zip(ordered, rates, strict=True))
    return msgspec.structs.replace(found, points=fitted)


def _fitted_point(point: Point, undisturbed: float, found: Fit) -> FittedPoint:
    fitted = found.at(point.tasks)
    return FittedPoint(
        tasks=point.tasks,
        measured=point.samples_per_s,
        undisturbed=undisturbed,
        fitted=fitted,
        deviation=undisturbed / fitted - 1,
    )


def disturbance(point: Point, machine_cpus: int) -> float:
    """Return the factor by which other load has slowed the workers.

    Without it no worker would wait for a CPU, and each would do its work in its CPU time, until
    the workers compete with each other for all CPUs, or all that they may use.
    """
    unstarved = point.tasks - point.starved_cpus
    alone = point.tasks / unstarved if unstarved > 0 else inf
    possible = min(machine_cpus, point.tasks * point.cpus)
    most = possible / point.busy_cpus if point.busy_cpus else inf
    factor = min(alone, most)
    return max(1.0, factor) if factor < inf else 1.0


def _ceiling(points: Sequence[Point], machine_cpus: int) -> float | None:
    most = max(point.samples_per_s * disturbance(point, machine_cpus) for point in points)
    spent = sum(point.busy_cpus * point.seconds for point in points)
    samples = sum(point.samples_per_s * point.seconds for point in points)
    return max(most, machine_cpus * samples / spent) if spent else None


def _chosen(samples: _RateSamples) -> tuple[Law, float | None]:
    """Return the simplest law that predicts left-out points as well as the best one."""
    if len(np.unique(samples.workers)) < 3:
        return _of_few(samples), None
    laws = {name: fitted(samples) for name, fitted in LAWS.items()}
    sober = [name for name, law in laws.items() if samples.misses(law)[-1] <= PROMISE]
    errors = {name: _leave_one_out_error(samples, name) for name in sober or LAWS}
    best = min(errors.values())
    name = next(name for name, error in errors.items() if error <= best + NOISE)
    return laws[name], errors[name]


def _of_few(samples: _RateSamples) -> Law:
    """Fit one or two points: a line if it meets them, else a ceiling."""
    line = _linear(samples)
    return line if np.abs(samples.misses(line)).max() <= PROMISE else _roofline(samples)


def _leave_one_out_error(samples: _RateSamples, name: LawName) -> float:
    left = range(len(samples.workers))
    misses = [samples.misses(LAWS[name](samples.without(index)))[index] for index in left]
    return float(np.sqrt(np.mean(np.square(misses))))


def _linear(samples: _RateSamples) -> Law:
    return Law(LawName.LINEAR, _mean(samples.rates / samples.workers))


def _roofline(samples: _RateSamples) -> Law:
    """Fit a line to the first points and a ceiling to the others, split where the fit is best.

    Without a visible ceiling, it is set to the highest point, as no more is known to be possible.
    """
    workers, rates = samples.workers, samples.rates
    laws = [
        Law(
            LawName.ROOFLINE,
            rate=_mean(rates[:cut] / workers[:cut]),
            cap=_mean(rates[cut:]) if cut < len(rates) else float(rates.max()),
        )
        for cut in range(1, len(rates) + 1)
    ]
    return min(laws, key=lambda law: float(np.square(samples.misses(law)).sum()))


def _contended(name: LawName, terms: int) -> Callable[[_RateSamples], Law]:
    """Fit Amdahl's or Gunther's law: n / X is a sum of terms with coefficients >= 0.

    Terms: 1, n - 1, n (n - 1).
    """

    def fitted(samples: _RateSamples) -> Law:
        n = samples.workers
        columns = np.stack([np.ones_like(n), n - 1, n * (n - 1)])[:terms]
        base, *losses = _least_squares(columns, n / samples.rates)
        sigma, kappa = (*(loss / base for loss in losses), 0.0)[:2]
        return Law(name, rate=1 / base, sigma=sigma, kappa=kappa)

    return fitted


def _least_squares(columns: Array, wanted: Array) -> list[float]:
    """Fit coefficients >= 0 of columns to `wanted`, least squares of logarithms.

    Gauss-Newton; the most negative term is removed, and the rest fitted again.
    """
    used = list(range(len(columns)))
    while True:
        basis = columns[used].T
        found = np.linalg.lstsq(basis / wanted[:, None], np.ones_like(wanted), rcond=None)[0]
        for _ in range(ROUNDS):
            model = np.maximum(basis @ found, wanted * NOISE)
            step = np.linalg.lstsq(basis / model[:, None], np.log(wanted / model), rcond=None)[0]
            found = found + step
        worst = int(np.argmin(found))
        if found[worst] >= 0 or len(used) == 1:
            break
        used.pop(max(worst, 1))
    coefficients = dict(zip(used, found, strict=True))
    return [float(coefficients.get(index, 0.0)) for index in range(len(columns))]


def _mean(values: Array) -> float:
    """Geometric mean."""
    return float(np.exp(np.log(values).mean()))


LAWS: dict[LawName, Callable[[_RateSamples], Law]] = {
    LawName.LINEAR: _linear,
    LawName.ROOFLINE: _roofline,
    LawName.AMDAHL: _contended(LawName.AMDAHL, 2),
    LawName.USL: _contended(LawName.USL, 3),
}
