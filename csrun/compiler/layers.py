"""Layers and groups: which weights travel together, and in which function a kernel stands."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from csrun.cirh.ops.model import ParameterOp
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.graph import GRADIENT
from csrun.compiler.kernels import Kernel, Phase
from csrun.compiler.matching import MatchedModel
from csrun.executable import (
    Group,
    Initializer,
    InitializerKind,
    Layer,
    Parameter,
    aligned,
    nbytes_of,
)


@dataclass(frozen=True)
class Layout:
    """The flat regions of the store, and the group of every kernel of each phase.

    forward and backward: kernels by group, in program order.
    """

    parameters: tuple[Parameter, ...]
    layers: tuple[Layer, ...]
    groups: tuple[Group, ...]
    forward: tuple[tuple[Kernel, ...], ...]
    backward: tuple[tuple[Kernel, ...], ...]

    @property
    def region_bytes(self) -> int:
        """Length of a flat region."""
        return sum(group.nbytes for group in self.groups)


def lay_out(model: MatchedModel, group_bytes: int) -> Layout:
    """Place parameters in the order in which the model made them, and cut them into groups.

    Groups are runs of layers of up to `group_bytes`; a model that does not read its layers in
    their order gets one group.
    """
    parameters = _place(model)
    layout = _with_groups(model, parameters, group_bytes)
    if layout is None:
        layout = _with_groups(model, parameters, sum(map(nbytes_of_parameter, parameters)))
    assert layout is not None, "one group is always in order"
    return layout


def nbytes_of_parameter(parameter: Parameter) -> int:
    """Bytes that a parameter takes in a flat region."""
    return aligned(nbytes_of(parameter.shape, parameter.dtype))


def _place(model: MatchedModel) -> list[Parameter]:
    parameters, offset = [], 0
    for operation in model.parameters:
        parameters.append(_parameter(operation, offset))
        offset += nbytes_of_parameter(parameters[-1])
    return parameters


def _with_groups(
    model: MatchedModel, parameters: list[Parameter], group_bytes: int
) -> Layout | None:
    """None when a kernel would need the weights of a group whose turn it is not."""
    groups = _cut(parameters, group_bytes)
    group_of_layer = {layer: group.index for group in groups for layer in group.layers}
    group_of = {p.name: group_of_layer[p.layer] for p in parameters}
    order = list(range(max(len(groups), 1)))
    forward = _assign(model.kernels, Phase.FORWARD, group_of, order)
    backward = _assign(model.kernels, Phase.BACKWARD, group_of, order[::-1])
    if forward is None or backward is None:
        return None
    layers = _layers(model, parameters, group_of_layer)
    return Layout(tuple(parameters), layers, tuple(groups), forward, backward)


def _assign(
    kernels: Sequence[Kernel], phase: Phase, group_of: Mapping[str, int], order: list[int]
) -> tuple[tuple[Kernel, ...], ...] | None:
    """Kernels by group: each where its weights are, or where the kernel before it is."""
    assigned: dict[int, list[Kernel]] = {group: [] for group in order}
    turn, turn_of = 0, {group: place for place, group in enumerate(order)}
    for kernel in kernels:
        if kernel.phase is not phase:
            continue
        needed = {group_of[name] for name in _touched(kernel)}
        if len(needed) > 1:
            return None
        for group in needed:
            if turn_of[group] < turn:
                return None
            turn = turn_of[group]
        assigned[order[turn]].append(kernel)
    return tuple(tuple(assigned[group]) for group in sorted(order))


def _touched(kernel: Kernel) -> set[str]:
    """Parameters whose weights the kernel reads, or whose gradients it writes."""
    gradients = [a.name for a in kernel.writes if a.name.startswith(GRADIENT)]
    return {*kernel.parameters, *(name.removeprefix(GRADIENT) for name in gradients)}


def _layers(
    model: MatchedModel, parameters: list[Parameter], group_of_layer: Mapping[str, int]
) -> tuple[Layer, ...]:
    layer_of = {p.name: p.layer for p in parameters}
    own: dict[str, list[Parameter]] = {layer: [] for layer in group_of_layer}
    for p in parameters:
        own[p.layer].append(p)
    kernels: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in model.kernels:
        for layer in {kernel.layer, *(layer_of[name] for name in _touched(kernel))}:
            kernels[layer].append(kernel)
    return tuple(
        _layer(layer, group, own[layer], kernels[layer]) for layer, group in group_of_layer.items()
    )


def _layer(name: str, group: int, own: Sequence[Parameter], kernels: Sequence[Kernel]) -> Layer:
    flops = {
        phase: sum(k.flops for k in kernels if k.phase is phase)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    }
    kind = next((k.kind for k in kernels if k.parameters), "none")
    written = {a for k in kernels for a in k.writes if not a.name.startswith(GRADIENT)}
    return Layer(
        name,
        kind,
        group,
        tuple(p.name for p in own),
        flops[Phase.FORWARD],
        flops[Phase.BACKWARD],
        sum(map(nbytes_of_parameter, own)),
        sum(aligned(nbytes_of(a.shape, a.dtype)) for a in written),
    )


def _parameter(operation: ParameterOp, offset: int) -> Parameter:
    kind, first = type_of(operation.out), operation.initializer
    assert operation.scope is not None, "verified: a parameter has a scope"
    return Parameter(
        operation.symbol.data,
        operation.scope.data,
        shape_of(kind),
        dtype_of(kind),
        offset,
        Initializer(InitializerKind(first.distribution.data), first.scale.value.data),
    )


def _cut(parameters: list[Parameter], group_bytes: int) -> list[Group]:
    """Runs of layers of up to `group_bytes`; a larger layer is a group of its own."""
    groups: list[Group] = []
    sizes: dict[str, int] = {}
    for p in parameters:
        sizes[p.layer] = sizes.get(p.layer, 0) + nbytes_of_parameter(p)
    offset = 0
    for layer, nbytes in sizes.items():
        last = groups[-1] if groups else None
        if last and last.nbytes + nbytes <= group_bytes:
            groups[-1] = msgspec.structs.replace(
                last, layers=(*last.layers, layer), nbytes=last.nbytes + nbytes
            )
        else:
            groups.append(Group(len(groups), (layer,), offset, nbytes))
        offset += nbytes
    return groups
