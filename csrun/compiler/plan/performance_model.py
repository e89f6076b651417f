"""Performance model: throughput of a model on a CS system, estimated before a run.

A layer on P PEs, alone, with F FLOPs a sample:

    compute       = min(P, M) * FLOP/s of a PE * efficiency / F                        pipelined
                    P * FLOP/s of a PE * efficiency / F                                streaming
    transmission  = sqrt(P) * bytes a second of a link / bytes a sample that cross     pipelined
                    I/O bytes a second * batch / weights' bytes a batch                streaming

A PE does two FLOPs per multiply-add. Weights, gradients and activations are sent at half precision,
whatever the executor's. Samples flow through a pipelined layer one after the other, so its PEs
cannot do more work at a time than the multiply-adds, M, of one sample's forward pass; a small model
gains from replicas for this reason. A pipelined layer's activations cross one side of a square of
its PEs, as far as other layers read them. A streamed layer's weights are sent as often as the
plan's visits load them: in training twice per batch, less often for the last group, more often for
layers used at several places; their gradients are sent once. With micro-batches both happens once
per micro-batch, and so does the fixed time.

R replicas of a pipelined model run concurrently, each on 1 / R of the batch: a layer's rates are R
times those of one replica. In training they sum their gradients in a ring: once per batch,
2 (R - 1) / R times a layer's gradients cross the side of its PEs in each replica, besides the
activations.

With several systems, in streaming, each computes its share of the batch: a layer's compute rate is
the sum of theirs. The I/O of each carries its share of the inputs, and all weights and gradients.

All layers: pipelined layers run concurrently, and the slowest one limits the rate; streamed layers
use the whole wafer in turn. A batch takes an additional fixed time.

    compute       = batch / (batch / pace + overhead)
    transmission  = the smallest of the layers', and of I/O bytes a second * batch / I/O bytes
    samples/s     = the smaller of the two

The I/O carries a batch's inputs and, in streaming, all layers' weights and gradients. Utilization
is the FLOPs done at the model's samples/s, divided by the peak of the PEs in question.

A site file has the known properties of a system: PEs, clock, multiply-adds, I/O bandwidth. Unknown
constants are fitted to published throughput: each is the geometric mean of the values that the
relevant rows imply individually. scripts/bench estimates predicts every row from the others.

Source: own design; for the ring, Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from csrun.base.mode import RunMode
from csrun.executable import Estimate, Layer, LayerEstimate, PlanOptions
from csrun.site import System

#: A link between two PEs, in each direction. The WSE-2's 220 Pb/s (its data sheet) over 850,000
#: cores, four neighbours, two directions and 1.1 GHz come to 29 bits a cycle: links of 32.
LINK_BYTES_PER_CYCLE = 4
HALF_BYTES = 2  # bytes of a number at half precision


@dataclass(frozen=True)
class Constants:
    """Constants that no data sheet gives.

    efficiency: share of the peak FLOP/s that a layer reaches.
    batch_overhead_s: fixed time of a batch.
    """

    efficiency: float
    batch_overhead_s: float


#: efficiency: BERT-large at sequence 128 (6,370 samples/s, batch 1024) implies 0.230, GPT-J 6B at
#: 2048 (21.96 samples/s on two systems, batch 130, blocks recomputed) 0.172. batch_overhead_s:
#: FC-MNIST 500-300 (479,189 and 358,417 samples/s, batch 256) implies 534 and 714 us, 10 x 50
#: (140,000 samples/s, batch 128) 914 us.
FITTED = Constants(efficiency=0.199, batch_overhead_s=704e-6)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of one of the systems, under the options of a compile or a plan.

    The layers' FLOPs and activations are those of `minibatch_size` samples, `input_bytes` those of
    the full batch; layers count bytes of the executor's numbers, of `itemsize`. `pes` has each
    layer's PEs in a replica; if it is empty, pipelined layers share the usable PEs in proportion to
    their FLOPs, an upper bound for any placement, and streamed ones have all of them.
    """

    layers: Sequence[Layer]
    pes: Mapping[str, int]
    input_bytes: int
    batch_size: int
    minibatch_size: int
    options: PlanOptions
    system: System
    itemsize: int = HALF_BYTES

    def pes_of(self, layer: Layer) -> int:
        """Return the PEs of a layer in one replica."""
        if self.pes:
            return self.pes[layer.name]
        if self.options.is_streaming:
            return self.system.usable_cores
        share = _flops(layer) / sum(map(_flops, self.layers))
        return max(int(share * self.system.usable_cores / self.options.replicas), 1)

    def working_pes(self, layer: Layer) -> float:
        """Return how many of a layer's PEs in one replica work at a time."""
        if self.options.is_streaming:
            return self.pes_of(layer)
        # Two FLOPs per multiply-add: a sample has no work for more PEs than it has multiply-adds.
        return min(self.pes_of(layer), max(self.per_sample(layer.forward_flops) / 2, 1))

    def per_sample(self, of_minibatch: int) -> float:
        """Divide a minibatch's FLOPs or bytes by its samples."""
        return of_minibatch / self.minibatch_size

    def link_bytes(self, layer: Layer) -> float:
        """Return the bytes that a layer of a replica sends per sample: activations and share of
        gradients.
        """
        gradients = layer.weight_bytes if self.options.run_mode is RunMode.TRAIN else 0
        summed = 2 * (self.options.replicas - 1) * gradients / self.batch_size
        return self.half * (self.per_sample(max(layer.crossing_bytes, 1)) + summed)

    def streamed_bytes(self, layer: Layer) -> float:
        """Return the I/O bytes of a layer's weights and gradients per batch."""
        if not self.options.is_streaming:
            return 0
        sent = self.options.micro_batches if self.options.run_mode is RunMode.TRAIN else 0
        return self.half * layer.weight_bytes * (layer.loads + sent)

    def overhead_s(self, constants: Constants) -> float:
        """Fixed time of a batch, in seconds."""
        return self.options.micro_batches * constants.batch_overhead_s

    @property
    def half(self) -> float:
        """Bytes sent for each byte that the executor counts."""
        return HALF_BYTES / self.itemsize

    @property
    def io_samples_per_sec(self) -> float:
        """Rate that the I/O sustains, in samples per second."""
        weights = sum(map(self.streamed_bytes, self.layers))
        nbytes = self.input_bytes / self.options.systems + weights
        return _io_bytes_per_sec(self.system) * self.batch_size / max(nbytes, 1)


def estimate(work: Work, constants: Constants = FITTED) -> Estimate:
    """Estimate the rate of the system, and of each layer alone."""
    alone = [_LayerRates.of(layer, work, constants) for layer in work.layers]
    seconds = [1 / layer.compute for layer in alone]  # per sample
    pace_s = sum(seconds) if work.options.is_streaming else max(seconds, default=0.0)
    compute = 1 / (pace_s + work.overhead_s(constants) / work.batch_size)
    transmission = min([work.io_samples_per_sec, *(layer.transmission for layer in alone)])
    rate, usable = min(compute, transmission), work.system.usable_cores
    own_rate = rate / work.options.systems
    pes = [layer.pes for layer in alone]
    active = max(pes, default=0) if work.options.is_streaming else sum(pes)
    flops = sum(layer.flops for layer in alone)
    return Estimate(
        rate,
        compute,
        transmission,
        active / usable,
        flops * own_rate / (usable * _pe_flops_per_sec(work.system)),
        tuple(layer.estimate(own_rate, work.system) for layer in alone),
    )


@dataclass(frozen=True)
class _LayerRates:
    """One layer alone, in all replicas. Units: FLOPs per sample, rates in samples per second."""

    name: str
    pes: int
    flops: float
    compute: float
    transmission: float

    @classmethod
    def of(cls, layer: Layer, work: Work, constants: Constants) -> "_LayerRates":
        own, system = work.pes_of(layer), work.system
        pes = work.options.replicas * own
        flops = work.per_sample(_flops(layer))
        if work.options.is_streaming:
            bandwidth = _io_bytes_per_sec(system)
            nbytes = max(work.streamed_bytes(layer), 1) / work.batch_size
        else:
            bandwidth = work.options.replicas * sqrt(own) * LINK_BYTES_PER_CYCLE * system.clock_hz
            nbytes = work.link_bytes(layer)
        working = work.options.systems * work.options.replicas * work.working_pes(layer)
        compute = working * _pe_flops_per_sec(system) * constants.efficiency / flops
        return cls(layer.name, pes, flops, compute, bandwidth / nbytes)

    def estimate(self, rate: float, system: System) -> LayerEstimate:
        """Return the layer's line of the report, if a system runs the whole model at `rate`."""
        return LayerEstimate(
            self.name,
            self.pes,
            min(self.compute, self.transmission),
            self.compute,
            self.transmission,
            self.flops * rate / (self.pes * _pe_flops_per_sec(system)),
        )


def _flops(layer: Layer) -> int:
    """Return a minibatch's FLOPs; one for a layer that only moves data, so that its rate is
    finite.
    """
    return max(layer.forward_flops + layer.backward_flops, 1)


def _pe_flops_per_sec(system: System) -> float:
    return 2 * system.multiply_adds_per_core_cycle * system.clock_hz


def _io_bytes_per_sec(system: System) -> float:
    return system.io_gbit_per_s * 1e9 / 8
