"""An input pipeline as the report looks at it: its operators, and what is known besides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, floor, inf
from typing import Any

from csrun.advice.numbers import with_spread
from csrun.data.operators import InputOperator, StageTime


@dataclass(frozen=True)
class Pipeline:
    """A chain, source first. None stands for what nobody knows.

    training: whether a model learns from it. cardinality: batches of one reader; None when endless,
    too. last_step: where the run ends. streamers and cpus: tasks that read it, CPUs that each has;
    has_ring: whether they fill one ahead, as all do but a process that makes its own batches.
    wanted_per_s: samples that the CS system is estimated to take. costs: the measured time of a
    batch, by the names that `InputOperator.stage` gives, spreads: how much it scatters; batch_s:
    from one batch to the next, 0 when nothing was measured.
    """

    operators: tuple[InputOperator, ...]
    training: bool = True
    indexable: bool = True
    cardinality: int | None = None
    last_step: int | None = None
    streamers: int | None = None
    cpus: int | None = None
    has_ring: bool = True
    wanted_per_s: float | None = None
    costs: Mapping[str, StageTime] = field(default_factory=dict)
    batch_s: float = 0.0
    spreads: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def batch_size(self) -> int | None:
        """Samples of a batch; None when nobody knows."""
        sizes = (op.options.get("batch_size") for op in self.operators if op.name == "batch")
        return next(sizes, None)

    @cached_property
    def work_s(self) -> float:
        """The stages' time of a batch, which may overlap."""
        return sum(cost.wall_s for cost in self.costs.values())

    @property
    def endless(self) -> bool:
        """Whether it has a `repeat` without end."""
        return any(op.name == "repeat" and op.options.get("count") is None for op in self.operators)

    @property
    def replayed(self) -> bool:
        """Whether each of several streamers makes all batches, and throws the others' away."""
        return not self.indexable and not self.has("shard", "shard_files")

    def has(self, *names: str) -> bool:
        """Whether one of these operators is in it."""
        return any(operator.name in names for operator in self.operators)

    def share(self, operator: InputOperator) -> float | None:
        """The part of a batch's time that an operator takes; None when it was not measured."""
        cost = self.costs.get(operator.stage)
        return cost.wall_s / self.work_s if cost and self.work_s else None

    def ms(self, operator: InputOperator, seconds: float, decimals: int = 1) -> str:
        """A part of an operator's time of a batch, in milliseconds, with its spread.

        decimals: of a time that does not scatter, or of which the spread is not known.
        """
        spread_ms = 1000 * self.spreads.get(operator.stage, 0.0)
        return with_spread(1000 * seconds, spread_ms, decimals)

    def samples_per_s(self) -> float | None:
        """What one streamer delivers; None when it was not measured, or changes with a cache."""
        if not self.batch_size or not self.batch_s or self.has("cache"):
            return None
        return self.batch_size / self.batch_s

    def total_batches(self) -> int | None:
        """Batches that all streamers together give; None when endless or unknown."""
        if self.endless:
            return None
        own = self.cardinality if self.cardinality is not None else self._counted()
        if own is None:
            return None
        sharded = self.has("shard", "shard_files")
        return own * (self.streamers or 1 if sharded else 1)

    def _counted(self) -> int | None:
        """Batches that the samples make; None when nobody knows."""
        at = next((at for at, op in enumerate(self.operators) if op.name == "batch"), 0)
        here = Here(self, at)
        samples = here.samples()
        size: int = here.option("batch_size") or 0
        if samples is None or not size or here.comes_before("repeat", "shard", "filter"):
            return None
        return floor(samples / size) if here.option("drop_remainder") else ceil(samples / size)


@dataclass(frozen=True)
class Here:
    """One operator, where it stands."""

    pipeline: Pipeline
    at: int

    @property
    def operator(self) -> InputOperator:
        return self.pipeline.operators[self.at]

    @property
    def before(self) -> tuple[InputOperator, ...]:
        """What its elements have gone through, source first."""
        return self.pipeline.operators[: self.at]

    @property
    def after(self) -> tuple[InputOperator, ...]:
        """What its elements go through next."""
        return self.pipeline.operators[self.at + 1 :]

    @property
    def cost(self) -> StageTime | None:
        """What it takes a batch; None when it was not measured."""
        return self.pipeline.costs.get(self.operator.stage)

    def option(self, name: str) -> Any:
        """An argument of it; None when it has none of that name."""
        return self.operator.options.get(name)

    def comes_after(self, *names: str) -> bool:
        """Whether one of these operators is before it."""
        return any(operator.name in names for operator in self.before)

    def comes_before(self, *names: str) -> bool:
        """Whether one of these operators is after it."""
        return any(operator.name in names for operator in self.after)

    def samples(self) -> float | None:
        """Samples that reach it, infinite ones after `repeat()`; None when nobody knows."""
        count: float | None = None
        for operator in self.before:
            count = _samples_after(operator, count)
        return count


def _samples_after(operator: InputOperator, count: float | None) -> float | None:
    options = operator.options
    if "samples" in options:
        return options["samples"]  # type: ignore[no-any-return]
    if operator.name == "repeat":
        times = options.get("count")
        return inf if times is None else count and count * times
    if operator.name in ("filter", "shard_files"):
        return count if count == inf else None
    if operator.name == "shard" and count is not None:
        return count if count == inf else ceil((count - options["index"]) / options["count"])
    return count
