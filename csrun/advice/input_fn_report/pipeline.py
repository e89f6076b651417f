"""Input pipeline of a report: its operators, and facts about the run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, floor, inf
from typing import Any

from csrun.advice.numbers import with_spread
from csrun.data.input_operators import InputOperator, StageTime


@dataclass(frozen=True)
class Pipeline:
    """Chain of operators, source first. None stands for unknown.

    training: whether a model learns from it. cardinality: batches of one reader; None when endless,
    too. last_step: where the run ends. streamers and cpus: tasks that read it, CPUs that each has;
    has_ring: whether they fill one ahead, as all do but a process that makes its own batches.
    wanted_per_s: samples that the CS system is estimated to take. costs: measured times per batch,
    by the names of `Operator.stage`; spreads: their spread; batch_s: time between batches, 0 if
    nothing was measured.
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
        """Batch size; None if unknown."""
        sizes = (op.options.get("batch_size") for op in self.operators if op.name == "batch")
        return next(sizes, None)

    @cached_property
    def work_s(self) -> float:
        """Sum of the stages' times per batch, which may overlap."""
        return sum(cost.wall_s for cost in self.costs.values())

    @property
    def endless(self) -> bool:
        """True if it has an endless `repeat`."""
        return any(op.name == "repeat" and op.options.get("count") is None for op in self.operators)

    @property
    def replayed(self) -> bool:
        """True if each of several streamers makes all batches, and drops those of others."""
        return not self.indexable and not self.has("shard", "shard_files")

    def has(self, *names: str) -> bool:
        """True if one of these operators is in it."""
        return any(operator.name in names for operator in self.operators)

    def share(self, operator: InputOperator) -> float | None:
        """Fraction of the batch time taken by an operator; None if not measured."""
        cost = self.costs.get(operator.stage)
        return cost.wall_s / self.work_s if cost and self.work_s else None

    def ms(self, operator: InputOperator, seconds: float, decimals: int = 1) -> str:
        """Format a part of an operator's time per batch, in ms with its spread.

        decimals: for a time without spread, or of unknown spread.
        """
        spread_ms = 1000 * self.spreads.get(operator.stage, 0.0)
        return with_spread(1000 * seconds, spread_ms, decimals)

    def samples_per_s(self) -> float | None:
        """Rate of one streamer; None if not measured, or if a cache changes it."""
        if not self.batch_size or not self.batch_s or self.has("cache"):
            return None
        return self.batch_size / self.batch_s

    def total_batches(self) -> int | None:
        """Total batches of all streamers; None if endless or unknown."""
        if self.endless:
            return None
        own = self.cardinality if self.cardinality is not None else self._counted()
        if own is None:
            return None
        sharded = self.has("shard", "shard_files")
        return own * (self.streamers or 1 if sharded else 1)

    def _counted(self) -> int | None:
        """Number of batches of the samples; None if unknown."""
        at = next((at for at, op in enumerate(self.operators) if op.name == "batch"), 0)
        here = PipelinePosition(self, at)
        samples = here.samples()
        size: int = here.option("batch_size") or 0
        if samples is None or not size or here.comes_before("repeat", "shard", "filter"):
            return None
        return floor(samples / size) if here.option("drop_remainder") else ceil(samples / size)


@dataclass(frozen=True)
class PipelinePosition:
    """Operator at its position in a pipeline."""

    pipeline: Pipeline
    at: int

    @property
    def operator(self) -> InputOperator:
        return self.pipeline.operators[self.at]

    @property
    def before(self) -> tuple[InputOperator, ...]:
        """Operators before it, source first."""
        return self.pipeline.operators[: self.at]

    @property
    def after(self) -> tuple[InputOperator, ...]:
        """Operators after it."""
        return self.pipeline.operators[self.at + 1 :]

    @property
    def cost(self) -> StageTime | None:
        """Its cost per batch; None if not measured."""
        return self.pipeline.costs.get(self.operator.stage)

    def option(self, name: str) -> Any:
        """Return an argument of the operator, or None."""
        return self.operator.options.get(name)

    def comes_after(self, *names: str) -> bool:
        """True if one of these operators is before it."""
        return any(operator.name in names for operator in self.before)

    def comes_before(self, *names: str) -> bool:
        """True if one of these operators is after it."""
        return any(operator.name in names for operator in self.after)

    def samples(self) -> float | None:
        """Number of samples that reach it, infinite after `repeat()`; None if unknown."""
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
