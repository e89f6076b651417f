"""Memory of layers on the wafer, and the part of the fabric that they get for it.

In a pipeline each layer has its own PEs, which hold its copies of the weights (gradients and
optimizer state are as large) and the buffers of all minibatches in flight, including those of norms
after it. In weight streaming layers use the whole wafer in turn. Replicas of a pipeline are equal
parts of the fabric with the same layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler.kernels import Kernel, Phase
from csrun.compiler.options import CompileOptions
from csrun.compiler.plan.floor_plan import (
    Demands,
    Wire,
    arrange,
    equal_parts,
    moved,
    pes_needed,
    usable_part,
)
from csrun.compiler.plan.memory_plan import Lifetime, place
from csrun.compiler.plan.placement import homes_of, with_matrices
from csrun.compiler.plan.store_layout import Layout
from csrun.executable import Layer, Rectangle, Region, StoreLayout, aligned

WITHOUT_WEIGHTS = Layer("model", "none", 0, (), 0, 0, 0, 0)


@dataclass(frozen=True)
class Footprint:
    """Layers of a model on a system; `alive` are the buffers of one minibatch.

    home_of: index in the order of layers of the layer that an array belongs to.
    weight_copies: number of arrays of the size of its weights that a layer stores.
    wires: which layers read from which.
    """

    layers: tuple[Layer, ...]
    options: CompileOptions
    weight_copies: float
    home_of: dict[str, int]
    wires: tuple[Wire, ...]

    def layer_bytes(self, alive: Sequence[Lifetime]) -> list[int]:
        """Return the bytes that each layer of a replica stores on the wafer."""
        buffers: list[list[Lifetime]] = [[] for _ in self.layers]
        for lifetime in alive:
            buffers[self.home_of[lifetime.array.name]].append(lifetime)
        count = self.options.minibatches_in_flight
        return [
            int(self.weight_copies * layer.weight_bytes) + count * aligned(place(own, 0)[1])
            for layer, own in zip(self.layers, buffers, strict=True)
        ]

    def needed_bytes(self, alive: Sequence[Lifetime]) -> int:
        """Return the minimum memory of a pipeline, over all PEs; 0 if layers share the wafer.

        With replicas: the share of one replica in its part, scaled to the whole wafer.
        """
        if not self._is_pipeline:
            return 0
        own = self._parts[0]
        return pes_needed(self._demands(alive), own) * self.options.system.sram_bytes // own.pes

    def floor_plan(self, alive: Sequence[Lifetime]) -> tuple[Region, ...]:
        """Return a region for each layer of each replica, for a model that fits."""
        names = [layer.name for layer in self.layers]
        first, *_ = parts = self._parts
        if not self._is_pipeline:
            return tuple(Region(name, first) for name in names)
        plan = arrange(self._demands(alive), self.wires, first)
        return tuple(
            Region(name, moved(rectangle, first, part), replica)
            for replica, part in enumerate(parts)
            for name, rectangle in zip(names, plan, strict=True)
        )

    @property
    def _parts(self) -> tuple[Rectangle, ...]:
        return equal_parts(usable_part(self.options.system), self.options.replicas)

    @property
    def _is_pipeline(self) -> bool:
        return self.options.mode is ExecutionMode.PIPELINED

    def _demands(self, alive: Sequence[Lifetime]) -> Demands:
        training = self.options.run_mode is RunMode.TRAIN
        per_pe = self.options.system.sram_bytes_per_core
        return Demands(
            [x.forward_flops + training * x.backward_flops for x in self.layers],
            [-(-nbytes // per_pe) for nbytes in self.layer_bytes(alive)],
        )


def footprint(layout: Layout, store: StoreLayout, options: CompileOptions) -> Footprint:
    """Find each array's layer, and the wires, from the kernels."""
    places = {layer.name: place for place, layer in enumerate(layout.layers)}
    layers = layout.layers or (WITHOUT_WEIGHTS,)
    homes = homes_of(layout.kernels, with_matrices(layout.parameters), layers[0].name)
    home_of: dict[str, int] = {}
    wires: dict[Wire, None] = {}
    for kernel, home in zip(layout.kernels, (places.get(name, 0) for name in homes), strict=True):
        if kernel.phase is Phase.FORWARD:
            sources = {home_of.get(array.name, home) for array in kernel.reads} - {home}
            wires |= dict.fromkeys(Wire(source, home) for source in sorted(sources))
        _settle(kernel, home, home_of)
    return Footprint(layers, options, _weight_copies(layout, store, options), home_of, tuple(wires))


def _settle(kernel: Kernel, home: int, home_of: dict[str, int]) -> None:
    for array in (*kernel.writes, *kernel.scratch):
        home_of.setdefault(array.name, home)


def _weight_copies(layout: Layout, store: StoreLayout, options: CompileOptions) -> float:
    """Count weights, gradients, optimizer state, and the gradients of a later minibatch.

    In mixed precision there are also the weights as words, and all gradients that the wafer writes
    are words.
    """
    words = 0.5 if layout.is_half else 0.0
    if options.is_streaming:
        return words or 1
    if options.run_mode is not RunMode.TRAIN:
        return 1 + words
    several = options.micro_batches * options.minibatches_in_flight > 1 or options.accumulates
    gradients = words if store.has_half_gradients else 1 + several * (words or 1)
    return 1 + words + gradients + len(store.slots)
