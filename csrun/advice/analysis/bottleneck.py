"""The stage that takes the largest share of a worker's time, and what to do about it."""

import msgspec

from csrun.advice.analysis.scaling import Bound
from csrun.advice.measurements import Measurements, StageCost


class Stage(msgspec.Struct, frozen=True):
    """A stage's cost a sample, its share of the whole, and whether most of it is waiting."""

    name: str
    wall_us: float
    cpu_us: float
    share: float
    waits: bool

    @property
    def computing(self) -> float:
        """The share of its time in which it computes."""
        return min(1.0, self.cpu_us / self.wall_us) if self.wall_us else 1.0


class Limiting(msgspec.Struct, frozen=True):
    """The limiting stage. speedup: by how much it alone must become faster to reach the target,
    None when no speed of its own would do.
    """

    stage: Stage
    advice: str
    speedup: float | None


def stages_of(measured: Measurements) -> tuple[Stage, ...]:
    """The stages in the order of the pipeline, as they cost a worker that is least disturbed."""
    point = min(measured.points, key=lambda point: (point.tasks, point.cpus))
    total_s = sum(stage.wall_s for stage in point.stages) or 1.0
    running = max(0.0, 1 - point.starved_cpus / point.tasks)
    return tuple(_stage(cost, total_s, running) for cost in point.stages)


def limiting(
    stages: tuple[Stage, ...], bound: Bound, parallel: bool, missing: float
) -> Limiting | None:
    """The stage that limits, with `missing` the factor by which the whole must become faster.

    None for measurements without stages.

    Source: Amdahl 1967: a part p that is s times faster makes the whole 1 / (1 - p + p / s)
    """
    if not stages:
        return None
    worst = max(stages, key=lambda stage: stage.wall_us)
    left = 1 / missing - (1 - worst.share)
    speedup = worst.share / left if left > 0 else None
    return Limiting(worst, _advice(worst, bound, parallel), speedup)


def _stage(cost: StageCost, total_s: float, running: float) -> Stage:
    """running: the share of its time in which the worker had a CPU when it wanted one."""
    waits = cost.wall_s * running - cost.cpu_s > cost.cpu_s
    return Stage(cost.name, 1e6 * cost.wall_s, 1e6 * cost.cpu_s, cost.wall_s / total_s, waits)


def _advice(stage: Stage, bound: Bound, parallel: bool) -> str:
    if bound is Bound.REPLAY:
        return (
            "each task makes all batches, the others' included: shard the data, or make it faster;"
            " more tasks do not help"
        )
    if not stage.waits and parallel:
        return "it computes, on several CPUs when it has them: more CPUs a task, or faster code"
    if not stage.waits:
        return (
            "it computes, on one CPU a worker: more tasks, or faster code; more CPUs a task help"
            " once a map has num_parallel_calls"
        )
    if bound is Bound.RESOURCE:
        return (
            "it waits for something that all workers share: faster storage, a copy on the node, or"
            " cache() help; more tasks and CPUs do not"
        )
    return "it waits: more tasks wait side by side, or a faster source; more CPUs do not help"
