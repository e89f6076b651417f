"""Measurements of input pipelines whose laws are known, for what analyses them."""

from collections.abc import Callable, Sequence

from csrun.data.analysis.measurements import Measurements, Point, StageCost
from csrun.data.analysis.scaling import SiteFacts

TASKS = (1, 2, 4)
STAGES = (
    StageCost("shuffle", 1e-6, 1e-6),
    StageCost("map load", 7e-6, 6.5e-6),
    StageCost("batch", 2e-6, 1.5e-6),
)
LOCAL = SiteFacts("local", nodes=16, node_cpus=128, one_machine=True, link_bytes_per_s=1.5e11)
CLUSTER = SiteFacts("lab", nodes=16, node_cpus=8, one_machine=False, link_bytes_per_s=1.5e11)

Curve = Callable[[int], float]


def points_of(
    rate: Curve,
    tasks: Sequence[int] = TASKS,
    cpus: int = 1,
    busy: Curve = float,
    stages: tuple[StageCost, ...] = STAGES,
) -> tuple[Point, ...]:
    """Points on a curve."""
    return tuple(Point(n, cpus, rate(n), busy(n), 2.0, stages) for n in tasks)


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
