"""The stage that limits, judged by what limits the whole, and what to do about it.

What limits a layout is decided once, as its `ScalingLimit`: the stage and the advice follow from
that, so that no report calls a pipeline CPU-bound and its slowest stage one that waits.
"""

import msgspec

from csrun.advice.analysis.scaling import Saturation, ScalingLimit
from csrun.advice.measurements import Measurements, StageCost


class BottleneckStage(msgspec.Struct, frozen=True):
    """A stage's cost a sample, its share of the whole, and whether most of it is waiting.

    spread_us: how much wall_us scatters from batch to batch, 0 when it is not known.
    """

    name: str
    wall_us: float
    cpu_us: float
    spread_us: float
    share: float
    waits: bool

    @property
    def computing(self) -> float:
        """The share of its time in which it computes."""
        return min(1.0, self.cpu_us / self.wall_us) if self.wall_us else 1.0


class Limiting(msgspec.Struct, frozen=True):
    """The limiting stage.

    share: its part of the stages' time, or of their CPU time where the input is CPU-bound.
    speedup: by how much it alone must become faster to reach the target, None when no speed of its
    own would do.
    """

    stage: BottleneckStage
    share: float
    is_cpu_bound: bool
    advice: str
    speedup: float | None


def stages_of(measured: Measurements) -> tuple[BottleneckStage, ...]:
    """The stages in the order of the pipeline, as they cost a worker that is least disturbed."""
    point = measured.least_disturbed
    total_s = sum(stage.wall_s for stage in point.stages) or 1.0
    running = max(0.0, 1 - point.starved_cpus / point.tasks)
    return tuple(_stage(cost, total_s, running) for cost in point.stages)


def limiting(
    stages: tuple[BottleneckStage, ...],
    saturation: Saturation,
    limit: ScalingLimit | None,
    parallel: bool,
    missing: float,
) -> Limiting | None:
    """The stage that limits, with `missing` the factor by which the whole must become faster.

    limit: of the target, None when that is reached. None for measurements without stages.

    Source: Amdahl 1967: a part p that is s times faster makes the whole 1 / (1 - p + p / s)
    """
    if not stages:
        return None
    is_cpu_bound = limit is ScalingLimit.CPUS
    costs = {stage: stage.cpu_us if is_cpu_bound else stage.wall_us for stage in stages}
    worst = max(stages, key=costs.__getitem__)
    share = costs[worst] / (sum(costs.values()) or 1.0)
    left = 1 / missing - (1 - share)
    speedup = share / left if left > 0 else None
    advice = _advice(worst, saturation, limit, parallel)
    return Limiting(worst, share, is_cpu_bound, advice, speedup)


def _stage(cost: StageCost, total_s: float, running: float) -> BottleneckStage:
    """running: the share of its time in which the worker had a CPU when it wanted one."""
    return BottleneckStage(
        name=cost.name,
        wall_us=1e6 * cost.wall_s,
        cpu_us=1e6 * cost.cpu_s,
        spread_us=1e6 * cost.spread_s,
        share=cost.wall_s / total_s,
        waits=cost.wall_s * running - cost.cpu_s > cost.cpu_s,
    )


def _advice(
    stage: BottleneckStage, saturation: Saturation, limit: ScalingLimit | None, parallel: bool
) -> str:
    does = "waits" if stage.waits else "computes"
    if saturation is Saturation.REPLAY:
        return (
            "each task makes all batches, the others' included: shard the data, or make it faster;"
            " more tasks do not help"
        )
    if limit is ScalingLimit.LINK:
        return f"it {does}, but the link to the CS system is full before it: nothing to gain here"
    if limit is ScalingLimit.FILES:
        faster = "a faster source" if stage.waits else "faster code"
        return f"it {does}: more files, one for each streamer that is missing, or {faster}"
    if limit is ScalingLimit.CPUS:
        return (
            "the CPUs have no time left, and it takes the largest part: faster code or more CPUs;"
            " more tasks do not help"
        )
    if saturation is Saturation.RESOURCE:
        held_up = "it waits for" if stage.waits else "it computes, held up by"
        return (
            f"{held_up} something that all workers share: faster storage, a copy on the node, or"
            " cache() help; more tasks and CPUs do not"
        )
    if stage.waits and saturation is Saturation.CPUS:
        return (
            "it waits: more tasks wait side by side, as long as the CPUs have time for them, or a"
            " faster source"
        )
    if stage.waits:
        return "it waits: more tasks wait side by side, or a faster source; more CPUs do not help"
    if parallel:
        return "it computes, on several CPUs when it has them: more CPUs a task, or faster code"
    return (
        "it computes, on one CPU a worker: more tasks, or faster code; more CPUs a task help once"
        " a map has num_parallel_calls"
    )
