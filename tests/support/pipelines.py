"""Measurements of input pipelines that follow known laws."""

from collections.abc import Callable, Sequence

from csrun.advice.analysis.result import Analysis, analyze
from csrun.advice.analysis.scaling import SiteFacts
from csrun.advice.analysis.solve import FeedTarget
from csrun.advice.measurements import Measurements, Point, StageCost

TASKS = (1, 2, 4)
STAGES = (
    StageCost("shuffle", 1e-6, 1e-6),
    StageCost("map load", 7e-6, 6.5e-6),
    StageCost("batch", 2e-6, 1.5e-6),
)
LOCAL = SiteFacts("local", nodes=16, node_cpus=128, one_machine=True, link_bytes_per_s=1.5e11)
CLUSTER = SiteFacts("lab", nodes=16, node_cpus=8, one_machine=False, link_bytes_per_s=1.5e11)

#: A CMD whose pipeline makes 100,000 samples/s in one task, twice that in two, and never more.
MEASURING_SCRIPT = """
import sys, time
from csrun.context import analysis_dir, current, interpreter_mode
from csrun.advice.measurements import DeliveredRate, FeedRequest, Measurements, Point, StageCost
from csrun.base.mode import ExecutionMode

folder = analysis_dir()
print("arguments:", *sys.argv[1:], flush=True)
feeds = FeedRequest.read(folder) is not None
if ("sleep-feeding" if feeds else "sleep-measuring") in sys.argv:
    print("asleep", flush=True)
    time.sleep(60)
if not feeds:
    stages = (StageCost("map load", 7e-6, 6.5e-6), StageCost("batch", 3e-6, 3e-6))
    points = tuple(
        Point(n, 1, 1e5 * min(n, 2), min(n, 2), 2.0, stages) for n in (1, 2, 4)
    )
    streaming = interpreter_mode() is ExecutionMode.WEIGHT_STREAMING
    estimate = 0.0 if "no-estimate" in sys.argv else 150_000.0
    wafer = None if "no-wafer" in sys.argv else 176_000.0
    Measurements(128, 3140, 2, estimate, wafer, streaming, False, points).write(folder)
elif current().rank == 0 and "lazy" not in sys.argv:
    DeliveredRate(160_000.0, 5.0, len(current().streamers)).write(folder)
"""

Curve = Callable[[int], float]


def points_of(
    rate: Curve,
    tasks: Sequence[int] = TASKS,
    cpus: int = 1,
    busy: Curve = float,
    stages: tuple[StageCost, ...] = STAGES,
    starved: Curve = lambda tasks: 0.0,
) -> tuple[Point, ...]:
    """Measured points on a curve."""
    return tuple(Point(n, cpus, rate(n), busy(n), 2.0, stages, starved(n)) for n in tasks)


def measured(points: tuple[Point, ...], **changes) -> Measurements:
    """Measurements with these points, on a machine of two CPUs."""
    fields = {
        "batch_size": 128,
        "sample_bytes": 3140,
        "machine_cpus": 2,
        "estimated_samples_per_s": 239_369.0,
        "wafer_samples_per_s": 200_000.0,
        "streaming": False,
        "parallel": False,
        "points": points,
    }
    return Measurements(**{**fields, **changes})


def analysis_of(measurements: Measurements | None = None, **changes) -> Analysis:
    """Analysis for a target of 176,000 samples/s of a pipeline limited by two CPUs."""
    fields = {
        "measured": measurements or measured(points_of(bound_by_cpus, busy=lambda n: min(n, 2.0))),
        "site": LOCAL,
        "target": FeedTarget(176_000, "given with --target"),
        "command": ("python", "run.py", "--mode", "train"),
        "launcher": (),
    }
    return analyze(**{**fields, **changes})


def bound_by_cpus(tasks: int) -> float:
    """Rate that doubles with two tasks, and stays there."""
    return 100_000.0 * min(tasks, 2)
