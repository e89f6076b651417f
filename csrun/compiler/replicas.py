"""Choice of the number of replicas on the fabric.

Each replica gets an equal share of the batch, so their number divides it. With more replicas each
layer has fewer PEs and shorter wires, but each replica stores all weights, and they sum their
gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from xdsl.dialects.builtin import ModuleOp

from csrun.cirh import precision_of
from csrun.compiler.batch_parts import unsplittable_reason
from csrun.compiler.compile import estimate_of, inputs_of
from csrun.compiler.matching import MatchedModel, validate_model
from csrun.compiler.options import CompileOptions
from csrun.compiler.passes import NO_OBSERVER, PassObserver
from csrun.compiler.plan.arena import alive_in, with_samples, with_store
from csrun.compiler.plan.floor_plan import usable_part
from csrun.compiler.plan.footprint import Footprint, footprint
from csrun.compiler.plan.memory_plan import Lifetime
from csrun.compiler.plan.store_layout import lay_out
from csrun.executable import InputSpec, Layer

AS_FAST = 0.99  # relative to the fastest: a smaller gain is within the rounding to whole PEs


@dataclass(frozen=True)
class ReplicaChoice:
    """The chosen number of replicas, and the reason.

    most: largest number that fits.
    gain: estimated samples/s relative to one replica.
    refused: why the model cannot have replicas, or None.
    """

    replicas: int
    most: int
    gain: float
    refused: str | None = None


def choose_replicas(
    module: ModuleOp, options: CompileOptions, observer: PassObserver = NO_OBSERVER
) -> ReplicaChoice:
    """Return the smallest number of replicas whose estimated rate is about the highest.

    `module`, traced for one replica, is not changed. A model that does not even fit once gets one
    replica, so that its compile reports it.

    Raises: UsageError for an operator without a kernel
    """
    model = validate_model(module.clone(), observer)
    if (why := unsplittable_reason(model)) is not None:
        return ReplicaChoice(1, 1, 1.0, why)
    layout = lay_out(model, 0)
    if not layout.layers:
        return ReplicaChoice(1, 1, 1.0)
    layout, store = with_store(layout, model, options)
    home = footprint(layout, store, options)
    one = _Replica(home, alive_in(layout, model), inputs_of(model), model, precision_of(module))
    most = min(one.samples, usable_part(options.system).pes)
    counts = [count for count in range(1, most + 1) if one.samples % count == 0]
    rates = {count: rate for count in counts if (rate := one.of(count).rate())}
    best = next((n for n, rate in rates.items() if rate >= AS_FAST * max(rates.values())), 1)
    return ReplicaChoice(best, max(rates, default=1), rates[best] / rates[1] if rates else 1.0)


@dataclass(frozen=True)
class _Replica:
    """One of a model's replicas, with its share of the batch."""

    home: Footprint
    alive: Sequence[Lifetime]
    inputs: Sequence[InputSpec]
    model: MatchedModel
    precision: str

    @property
    def samples(self) -> int:
        return self.inputs[0].shape[0]

    def of(self, count: int) -> "_Replica":
        """Return one of this many replicas: weights are unchanged, everything else is divided."""
        samples = self.samples // count
        return _Replica(
            replace(
                self.home,
                layers=tuple(_divided(layer, count) for layer in self.home.layers),
                options=msgspec.structs.replace(self.home.options, replicas=count),
            ),
            with_samples(self.alive, self.model, self.samples, samples),
            [msgspec.structs.replace(x, shape=(samples, *x.shape[1:])) for x in self.inputs],
            self.model,
            self.precision,
        )

    def rate(self) -> float | None:
        """Return the estimated samples/s of all replicas; None if they do not fit."""
        options = self.home.options
        if self.home.needed_bytes(self.alive) > options.system.sram_bytes:
            return None
        floor_plan = self.home.floor_plan(self.alive)
        found = estimate_of(self.home.layers, self.inputs, floor_plan, options, self.precision)
        return found.samples_per_sec


def _divided(layer: Layer, count: int) -> Layer:
    return msgspec.structs.replace(
        layer,
        forward_flops=layer.forward_flops // count,
        backward_flops=layer.backward_flops // count,
        activation_bytes=layer.activation_bytes // count,
        crossing_bytes=layer.crossing_bytes // count,
    )
