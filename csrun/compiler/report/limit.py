"""Limit of a model's rate, and its remedy: the sentence at the top of both reports."""

from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from csrun.compiler.plan.performance_model import (
    FITTED,
    HALF_BYTES,
    Constants,
    Work,
    estimate,
)
from csrun.compiler.report.number_format import count, listed, percent, plain, si
from csrun.executable import Estimate, Layer, Plan, nbytes_of
from csrun.site import System

_UNITS = (1e3, "ms"), (1e6, "µs"), (1e9, "ns")


def work_of(plan: Plan, system: System) -> Work:
    """Return the work that a compiled model's estimate is based on."""
    return Work(
        layers=plan.layers,
        pes={region.layer: region.rectangle.pes for region in plan.floor_plan},
        input_bytes=sum(nbytes_of(spec.shape, spec.dtype) for spec in plan.inputs),
        batch_size=plan.batch_size,
        minibatch_size=plan.batch_size // plan.parts,
        options=plan,
        system=system,
        itemsize=np.dtype(plan.precision).itemsize,
    )


@dataclass(frozen=True)
class Limit:
    """An explained estimate; `sentence` and `total` are the same in every report.

    arena_bytes: memory of the plan on the wafer.
    recomputed: names of segments.
    """

    work: Work
    estimate: Estimate
    arena_bytes: int
    constants: Constants = FITTED
    recomputed: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: Plan, system: System) -> "Limit":
        """Return the limit of a compiled model."""
        work = work_of(plan, system)
        return cls(work, plan.estimate, plan.arena_bytes, recomputed=plan.recomputed)

    @property
    def sentence(self) -> str:
        """Return a sentence on the model's limit, and on what raises the rate."""
        return f"Limited by {self._limit}."

    @property
    def total(self) -> str:
        """Return a sentence that relates the kernels' rates to the model's."""
        whose = (
            "all kernels in sequence" if self.work.options.is_streaming else "the slowest kernel"
        )
        return (
            f"A batch of {self.work.batch_size:,} takes {_time(self._kernels_s)} for {whose}, plus "
            f"{_time(self.work.overhead_s(self.constants))} of overhead: "
            f"{count(self.estimate.compute_samples_per_sec)} compute samples/s."
        )

    @property
    def rates(self) -> str:
        """Sentence on the rates that are taken for each width of numbers, and the reason."""
        return (
            f"Numbers of any precision count as 16-bit ones, {HALF_BYTES} bytes each and "
            f"{self.work.system.multiply_adds_per_core_cycle} multiply-adds per PE and cycle: the "
            "published runs that the model is fitted to are in mixed precision."
        )

    @property
    def micro_batches(self) -> str:
        """Return a sentence on micro-batches and their cost; empty for a single one."""
        work, options = self.work, self.work.options
        if options.micro_batches == 1:
            return ""
        size = work.batch_size // work.options.micro_batches
        text = (
            f"A batch is computed in {work.options.micro_batches} micro-batches of {size:,} samples"
        )
        if not work.options.is_streaming:
            return text + ", in sequence."
        weights = si(sum(map(work.streamed_bytes, work.layers)), "B")
        return text + f": weights in and gradients out of each make {weights} per batch."

    @property
    def recomputation(self) -> str:
        """Return a sentence on recomputation and its cost; empty without it."""
        if not self.recomputed:
            return ""
        return (
            f"The forward pass of {len(self.recomputed)} segments is recomputed in the backward "
            f"pass because their activations do not fit: {listed(self.recomputed)}. The figures "
            "include this work and the repeated transfer of weights."
        )

    @property
    def _kernels_s(self) -> float:
        """Return the seconds of a batch spent in kernels."""
        seconds = [1 / layer.compute_samples_per_sec for layer in self.estimate.layers]
        pace_s = sum(seconds) if self.work.options.is_streaming else max(seconds, default=0.0)
        return self.work.batch_size * pace_s

    @property
    def _limit(self) -> str:
        found, overhead_s = self.estimate, self.work.overhead_s(self.constants)
        if found.compute_samples_per_sec > found.transmission_samples_per_sec:
            return self._transmission
        if self._kernels_s <= overhead_s:
            share = overhead_s / (overhead_s + self._kernels_s)
            part = "nearly 100 %" if share > 0.995 else percent(share)
            return (
                f"fixed overhead, {_time(overhead_s)} per batch, {part} of its time: "
                f"{self._larger_batch}"
            )
        return self._computation

    @property
    def _computation(self) -> str:
        if self.work.options.is_streaming:
            return (
                "computation: each layer uses all PEs in turn; reduce the work per sample, or "
                "use a system with more PEs"
            )
        layer = self._slowest("compute_samples_per_sec")
        pes, working = self.work.pes_of(layer), self.work.working_pes(layer)
        if working < pes:
            remedy = "more replicas of the model (larger batch_size)"
            if self.work.options.replicas == 1:
                remedy = "replicas of the model (runconfig.multireplica)"
            return (
                f"layer {layer.name}, where a sample occupies {count(working)} of {count(pes)} "
                f"PEs at a time: {remedy} raise the rate"
            )
        return (
            f"computation, mostly in layer {layer.name}: PEs are assigned by work; reduce the "
            "work per sample, or use a system with more PEs"
        )

    @property
    def _transmission(self) -> str:
        work, rate = self.work, self.estimate.transmission_samples_per_sec
        if work.io_samples_per_sec <= rate:
            inputs = work.input_bytes / work.options.systems
            weights = sum(map(work.streamed_bytes, work.layers))
            if weights > inputs:
                return (
                    f"the I/O of weights, {si(weights, 'B')} per batch, plus {si(inputs, 'B')} of "
                    f"inputs: {self._larger_batch}"
                )
            sample = si(work.input_bytes / work.batch_size, "B")
            return (
                f"the I/O of inputs, {sample} per sample: a smaller type or fewer features raise "
                "the rate"
            )
        return self._link(self._slowest("transmission_samples_per_sec"))

    def _slowest(self, rate: str) -> Layer:
        """Return the layer with the smallest rate of a kind."""
        slowest = min(self.estimate.layers, key=attrgetter(rate)).layer
        return next(layer for layer in self.work.layers if layer.name == slowest)

    def _link(self, layer: Layer) -> str:
        work = self.work
        activations = work.half * work.per_sample(layer.crossing_bytes)
        summed = work.link_bytes(layer) - activations
        if summed > activations:
            return (
                f"the sum of layer {layer.name}'s gradients over "
                f"{work.options.replicas} replicas, once per batch: {self._larger_batch}"
            )
        return (
            f"the links out of layer {layer.name}'s PEs, {si(activations, 'B')} of activations per "
            "sample: a layer with fewer units raises the rate"
        )

    @property
    def _larger_batch(self) -> str:
        """Return the remedy of a larger batch with its estimated gain, or why it does not help."""
        work, parts = self.work, self.work.options.micro_batches
        if parts > 1:
            return (
                f"fewer than {parts} micro-batches raise the rate, if a larger micro_batch_size "
                "fits"
            )
        doubled = replace(work, batch_size=2 * work.batch_size, input_bytes=2 * work.input_bytes)
        rate = estimate(doubled, self.constants).samples_per_sec
        words = (
            f"a larger batch_size raises the rate, {doubled.batch_size:,} to an estimated "
            f"{count(rate)} samples/s"
        )
        memory = work.system.sram_bytes
        if 2 * self.arena_bytes > memory:
            words += (
                f", if it fits: this one takes {si(self.arena_bytes, 'B')} of {si(memory, 'B')}"
            )
        return words


def _time(seconds: float) -> str:
    """Format a time as 0.704 ms, 29.2 µs or 2 ns."""
    scale, unit = next(each for each in _UNITS if seconds * each[0] >= 0.1 or each is _UNITS[-1])
    return f"{plain(seconds * scale, 3)} {unit}"
