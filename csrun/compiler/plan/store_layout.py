"""Layout of layers: their places in the store, their groups, and the functions that use them."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import msgspec

from csrun.base.half_formats import WORD
from csrun.cirh.ops.model import ParameterOp, StateOp, StoredOp
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.kernels import Kernel, Phase
from csrun.compiler.matching import MatchedModel
from csrun.compiler.plan.gradient_order import first_group_before_last
from csrun.compiler.plan.groups import group_layers
from csrun.compiler.plan.placement import crossing_bytes, homes_of, touched, with_matrices
from csrun.compiler.plan.visits import Function, GroupUse, functions_of
from csrun.executable import (
    GRADIENT,
    Group,
    Initializer,
    InitializerKind,
    Layer,
    Parameter,
    TensorShard,
    Visit,
    aligned,
    half_bytes,
    nbytes_of,
)


@dataclass(frozen=True)
class Layout:
    """The flat regions of the store, and the functions of the program.

    parameters: in the order in which the model created them.
    layers: in the order of their groups.
    recomputed: segments whose functions occur twice.
    dropped: names of arrays that these recompute, and that are not kept in between.
    """

    parameters: tuple[Parameter, ...]
    layers: tuple[Layer, ...]
    groups: tuple[Group, ...]
    functions: tuple[Function, ...]
    recomputed: tuple[str, ...] = ()
    dropped: frozenset[str] = frozenset()

    @property
    def region_bytes(self) -> int:
        """Size of a flat region."""
        return sum(group.nbytes for group in self.groups)

    @property
    def is_half(self) -> bool:
        """Return whether weights are sent as 16-bit words."""
        return any(group.half_bytes is not None for group in self.groups)

    @property
    def kernels(self) -> list[Kernel]:
        """Kernels of a step, in program order."""
        return [kernel for function in self.functions for kernel in function.kernels]


def lay_out(
    model: MatchedModel,
    group_bytes: int,
    micro_batches: int = 1,
    concurrent_updates: bool = False,
    stored: Sequence[str] = (),
) -> Layout:
    """Group the layers by about `group_bytes`, and split the kernels into visits of groups.

    concurrent_updates: MemoryX makes updates while the wafer computes, each as its gradients come;
    stored: layers of the store that the program uses, in their order there
    """
    operations: dict[str, list[StoredOp]] = {}
    for operation in model.parameters:
        operations.setdefault(_layer_of(operation), []).append(operation)
    sizes = {layer: sum(map(_nbytes, own)) for layer, own in operations.items()}
    layer_of = {op.symbol.data: layer for layer, own in operations.items() for op in own}
    uses = {
        phase: [_layers_used(k, layer_of) for k in model.kernels if k.phase is phase]
        for phase in Phase
    }
    passes = uses[Phase.FORWARD], uses[Phase.BACKWARD]
    cut = group_layers(sizes, *passes, group_bytes, concurrent_updates, stored)
    groups = _groups(cut, sizes)
    if model.storage is not None:
        groups = tuple(_in_halves(group, operations) for group in groups)
    group_of = {layer: group.index for group in groups for layer in group.layers}

    def use_of(kernel: Kernel) -> GroupUse:
        read, given = touched(kernel)
        return GroupUse(
            *(frozenset(group_of[layer_of[name]] for name in names) for names in (read, given))
        )

    trained = frozenset(group_of[layer_of[name]] for name in (*model.updates, *model.states))
    placed = _placed([op for layer in group_of for op in operations[layer]])
    kernels: Sequence[Kernel] = model.kernels
    if concurrent_updates:
        kernels = first_group_before_last(kernels, use_of)
    functions = functions_of(kernels, use_of, trained)
    homes = homes_of(model.kernels, layer_of, next(iter(group_of), ""))
    loads = loads_of(micro_batches * [function.visit for function in functions])
    parameters = tuple(placed[op.symbol.data] for op in model.parameters)
    _check_parts(parameters)
    return Layout(
        parameters,
        _layers(model, placed, group_of, homes, loads),
        groups,
        functions,
    )


def loads_of(visits: Sequence[Visit]) -> Counter[int]:
    """Count the loads of each group per step, excluding those that find it resident."""
    groups = [frozenset(visit.groups) for visit in visits if visit.groups]
    # A group that the previous visit used is still in its slot.
    before = [frozenset[int](), *groups]
    return Counter(group for own, held in zip(groups, before, strict=False) for group in own - held)


def nbytes_of_parameter(parameter: Parameter) -> int:
    """Return the size of a parameter in a flat region."""
    return aligned(nbytes_of(parameter.shape, parameter.dtype))


def _layer_of(operation: StoredOp) -> str:
    assert operation.scope is not None, "verified: a parameter has a scope"
    return operation.scope.data


def _nbytes(operation: StoredOp) -> int:
    return nbytes_of_parameter(_parameter(operation, 0))


def _layers_used(kernel: Kernel, layer_of: Mapping[str, str]) -> frozenset[str]:
    return frozenset(layer_of[name] for name in chain(*touched(kernel)))


def _groups(cut: Sequence[tuple[str, ...]], sizes: Mapping[str, int]) -> tuple[Group, ...]:
    nbytes = [sum(sizes[layer] for layer in layers) for layers in cut]
    offsets = accumulate(nbytes, initial=0)
    return tuple(
        Group(index, layers, offset, size)
        for index, (layers, offset, size) in enumerate(zip(cut, offsets, nbytes, strict=False))
    )


def _in_halves(group: Group, operations: Mapping[str, Sequence[StoredOp]]) -> Group:
    own = [op for layer in group.layers for op in operations[layer]]
    states = [_parameter(op, 0) for op in own if isinstance(op, StateOp)]
    return msgspec.structs.replace(group, half_bytes=half_bytes(group.nbytes, states))


def _placed(operations: Sequence[StoredOp]) -> dict[str, Parameter]:
    """Place parameters one after the other; return them by name."""
    offsets = accumulate(map(_nbytes, operations), initial=0)
    return {
        op.symbol.data: _parameter(op, offset)
        for op, offset in zip(operations, offsets, strict=False)
    }


def _check_parts(parameters: Sequence[Parameter]) -> None:
    """Check that the shards of a tensor, which a checkpoint has as one, are adjacent in the
    store.
    """
    ends: dict[str, int] = {}
    for p in parameters:
        if p.part is not None:
            end = ends.get(p.part.tensor, p.offset_bytes)
            assert p.offset_bytes == end, f"{p.name} is not adjacent to the preceding rows"
            ends[p.part.tensor] = end + nbytes_of(p.shape, p.dtype)


def _layers(
    model: MatchedModel,
    parameters: Mapping[str, Parameter],
    group_of: Mapping[str, int],
    homes: Sequence[str],
    loads: Mapping[int, int],
) -> tuple[Layer, ...]:
    own: dict[str, list[Parameter]] = {layer: [] for layer in group_of}
    for p in parameters.values():
        own[p.layer].append(p)
    kernels: dict[str, list[Kernel]] = defaultdict(list)
    for kernel, home in zip(model.kernels, homes, strict=True):
        kernels[home].append(kernel)
    on_fabric = with_matrices(parameters.values())
    working = homes_of(model.kernels, on_fabric, next(iter(group_of), ""))
    crossing = crossing_bytes(model.kernels, working)
    return tuple(
        _layer(layer, group, own[layer], kernels[layer], crossing[layer], loads[group])
        for layer, group in group_of.items()
    )


def _layer(
    name: str,
    group: int,
    own: Sequence[Parameter],
    kernels: Sequence[Kernel],
    crossing: int,
    loads: int,
) -> Layer:
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
        crossing,
        loads,
    )


def _parameter(operation: StoredOp, offset: int) -> Parameter:
    kind, first = type_of(operation.out), operation.initializer
    return Parameter(
        operation.symbol.data,
        _layer_of(operation),
        shape_of(kind),
        "float32" if dtype_of(kind) == WORD else dtype_of(kind),
        offset,
        Initializer(InitializerKind(first.distribution.data), first.scale.value.data),
        isinstance(operation, StateOp),
        _part(operation),
        isinstance(operation, ParameterOp) and operation.transposed is not None,
        isinstance(operation, StateOp) and operation.of_step is not None,
    )


def _part(operation: StoredOp) -> TensorShard | None:
    part = operation.part if isinstance(operation, ParameterOp) else None
    if part is None:
        return None
    return TensorShard(part.tensor.data, part.rows.value.data, part.first.value.data)
