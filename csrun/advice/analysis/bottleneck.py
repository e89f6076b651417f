"""Limiting stage of a pipeline, and the advice for it.

The limit of a layout is decided once, as its `Limit`. Stage and advice follow from it, so that no
report calls a pipeline CPU-bound while its slowest stage waits.
"""

import msgspec

from csrun.advice.analysis.scaling import Saturation, ScalingLimit
from csrun.advice.measurements import Measurements, StageCost


class BottleneckStage(msgspec.Struct, frozen=True):
    """Cost of a stage per sample, its share of the total, and True if it mostly waits.

    spread_us: spread of wall_us over batches, 0 if unknown.
    """

    name: str
    wall_us: float
    cpu_us: float
    spread_us: float
    share: float
    waits: bool

    @property
    def computing(self) -> float:
        """Fraction of its time spent computing."""
        return min(1.0, self.cpu_us / self.wall_us) if self.wall_us else 1.0


class Limiting(msgspec.Struct, frozen=True):
    """Limiting stage.

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
    """Return the stages in order, with the costs of the least disturbed worker."""
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
    """Return the limiting stage; `missing` is the speedup that the whole needs.

    limit: of the target, None if it is reached. Returns None without stages.

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
    """Convert a cost; running: fraction of its runnable time in which the worker had a CPU."""
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
            "each task makes all batches, including those of others: shard the data, or speed it "
            "up; more tasks do not help"
        )
    if limit is ScalingLimit.LINK:
        return f"it {does}, but the link to the CS system is saturated first: nothing to gain here"
    if limit is ScalingLimit.FILES:
        faster = "a faster source" if stage.waits else "faster code"
        return f"it {does}: use more files, one per streamer, or {faster}"
    if limit is ScalingLimit.CPUS:
        return (
            "the CPUs are saturated, and it uses the largest share: use faster code or more CPUs; "
            "more tasks do not help"
        )
    if saturation is Saturation.RESOURCE:
        held_up = "it waits for" if stage.waits else "it computes, held up by"
        return (
            f"{held_up} a resource shared by all workers: use faster storage, a copy on the node, "
            "or cache(); more tasks and CPUs do not help"
        )
    if stage.waits and saturation is Saturation.CPUS:
        return (
            "it waits: use more tasks, which wait in parallel while CPU time is left, or a faster "
            "source"
        )
    if stage.waits:
        return "it waits: use more tasks, or a faster source; more CPUs do not help"
    if parallel:
        return "it computes, on several CPUs if available: use more CPUs per task, or faster code"
    return (
        "it computes, on one CPU per worker: use more tasks or faster code; more CPUs per task "
        "only "
        "help a map with num_parallel_calls"
    )
