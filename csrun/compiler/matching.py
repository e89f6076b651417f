"""Kernel matching: from CIRH to the kernels and updates of a program."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import msgspec
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from csrun.base.half_formats import HalfFormat
from csrun.cirh import storage_of
from csrun.cirh.batch_axes import BatchRelation, Dependence, Dependences, dependences_of
from csrun.cirh.ops.base import CirhOp, plain
from csrun.cirh.ops.learning import UNLIMITED, AssignOp, Clipping, UpdatingOp
from csrun.cirh.ops.model import InputOp, LossOp, OutputOp, StateOp, StoredOp
from csrun.cirh.types import dtype_of, text_of, type_of
from csrun.compiler.errors import CompileError, refused
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph, parameter_of
from csrun.compiler.graph.labels import NumberRanges, Ranges, number_ranges
from csrun.compiler.kernels import MATCHERS, Kernel
from csrun.compiler.kernels.outputs import copy_out
from csrun.compiler.lair import generate_kernels
from csrun.compiler.lair.operators import changeable_operands
from csrun.compiler.optimizers import Optimizer, optimizer_of
from csrun.compiler.passes import NO_OBSERVER, PassObserver, run_passes
from csrun.compiler.passes.pass_manager import MATCHING
from csrun.compiler.written_values import WrittenValue, WrittenValues
from csrun.executable import GRADIENT
from csrun.executable.loss_scale import LossScaling


@dataclass(frozen=True)
class MatchedOutput:
    """A value for the host, its location, and how it depends on the batch."""

    name: str
    array: Array
    dependence: Dependence


@dataclass(frozen=True)
class MatchedModel:
    """A model as kernels, in program order.

    label_ranges: ranges of the losses' labels, by input.
    number_ranges: ranges of indices, by input.
    loss_dependence: how the loss depends on the batch; None without a loss.
    loss_count: index in the batch's counts of the number that the loss is a mean over.
    counts_padding: layer and operator whose result would include the padding of a batch, if any.
    updates: optimizer of each trained parameter, by name.
    states: how the next value of each updated state depends on the batch.
    mixing: first operator that computes a value from the batch as a whole, if any.
    clipping: limits of the gradients.
    loss_scaling: rule of the loss scale, if there is one.
    without_samples: names of arrays without a row per sample, for any batch size.
    storage: 16-bit format of mixed precision.
    written: values that each kernel, by its id, leaves in memory.
    """

    inputs: tuple[InputOp, ...]
    label_ranges: Ranges
    number_ranges: NumberRanges
    parameters: tuple[StoredOp, ...]
    kernels: tuple[Kernel, ...]
    outputs: tuple[MatchedOutput, ...]
    updates: dict[str, Optimizer]
    states: dict[str, Dependence]
    mixing: Operation | None
    clipping: Clipping
    loss_scaling: LossScaling | None
    loss_dependence: Dependence | None
    loss_count: int | None
    counts_padding: str | None
    without_samples: frozenset[str]
    storage: HalfFormat | None = None
    written: Mapping[int, tuple[WrittenValue, ...]] = field(default_factory=dict)

    @property
    def measures(self) -> bool:
        """Return whether updates need the global norm of the gradients."""
        return self.clipping.clip_norm is not None or self.loss_scaling is not None

    @property
    def has_loss(self) -> bool:
        """Return whether there is a loss."""
        return self.loss_dependence is not None


def validate_model(module: ModuleOp, observer: PassObserver = NO_OBSERVER) -> MatchedModel:
    """Run the passes and match kernels, without placement, plan or files.

    `module` is changed.

    Raises: CompileError naming operator, layer and the user's line if no kernel matches
    """
    run_passes(module, observer=observer)
    observer.begin(MATCHING)
    return match_kernels(module)


def match_kernels(
    module: ModuleOp, most: int | None = None, *, records: bool = False
) -> MatchedModel:
    """Cover every operator by a kernel of the library, and the others by generated kernels.

    most: maximum number of operators of a generated kernel.
    records: determine what each kernel writes.

    Raises: CompileError naming operator, layer and the user's line if no kernel computes one
    """
    graph = Graph(module, changeable_operands)
    covering = _Covering(graph)
    kernels = covering.run(most)
    _check_gradients(kernels, [*covering.updates, *covering.states])
    _require_free_names(graph.operations, covering.updates.values())
    operations, dependences = graph.operations, covering.dependences
    loss = next((op for op in operations if isinstance(op, LossOp)), None)
    return MatchedModel(
        inputs=tuple(op for op in operations if isinstance(op, InputOp)),
        label_ranges=graph.label_ranges,
        number_ranges=number_ranges(operations),
        parameters=tuple(op for op in operations if isinstance(op, StoredOp)),
        kernels=kernels,
        outputs=tuple(covering.outputs),
        updates=covering.updates,
        states=covering.states,
        clipping=_clipping(operations),
        loss_scaling=_loss_scaling(operations),
        loss_dependence=None if loss is None else dependences[loss.value],
        loss_count=graph.loss_count(),
        counts_padding=_counts_padding(graph, dependences),
        mixing=_mixing(graph, dependences),
        without_samples=graph.named(v for v, found in dependences.items() if found.axis is None)
        - graph.named(v for v, found in dependences.items() if found.axis is not None),
        storage=storage_of(module),
        written=covering.written(kernels) if records else {},
    )


class _Covering:
    """Operators of a module, each covered by a kernel, an output, an update or a state."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._placed: list[tuple[int, Kernel]] = []
        self.dependences = dependences_of(graph.operations)
        self.outputs: list[MatchedOutput] = []
        self.updates: dict[str, Optimizer] = {}
        self.states: dict[str, Dependence] = {}

    def run(self, most: int | None) -> tuple[Kernel, ...]:
        """Cover all operators; return the kernels in program order.

        Raises: CompileError for an operator without a kernel
        """
        for operation in self._left():
            if operation not in self._graph.taken:  # covered by the kernel of an earlier operator
                self._graph.start(operation)
                self._cover(operation)
        # The library's kernels first: generated ones fuse the remaining operators.
        left = self._left()
        self._placed += generate_kernels(left, self._graph, most)
        for operation in left:
            if operation not in self._graph.taken:
                raise _no_kernel(operation, self._graph)
        self._placed.sort(key=itemgetter(0))
        return _adding([kernel for _, kernel in self._placed])

    def written(self, kernels: Sequence[Kernel]) -> dict[int, tuple[WrittenValue, ...]]:
        """Return the values that each kernel, by its id, leaves in memory; kernels: those of
        `run`.
        """
        values = WrittenValues(self._graph, self.dependences)
        places = [place for place, _ in self._placed]
        return {id(k): values.of(k, place) for k, place in zip(kernels, places, strict=True)}

    def _left(self) -> list[Operation]:
        graph = self._graph
        return [op for op in graph.operations if op not in graph.taken and _needs_kernel(op)]

    def _cover(self, operation: Operation) -> None:
        """Cover an operator, unless a generated kernel will."""
        graph = self._graph
        if graph.is_number(operation):  # inlined in its readers
            graph.take(operation)
        elif isinstance(operation, OutputOp):
            graph.take(operation)
            self._output(operation)
        elif isinstance(operation, AssignOp):
            graph.take(operation)
            self.states[_state(operation)] = self.dependences[operation.grad]
        elif isinstance(operation, UpdatingOp):
            graph.take(operation)
            name, optimizer = _update(operation, graph)
            self.updates[name] = optimizer
        else:
            place = graph.place_of(operation)
            self._placed += [(place, kernel) for kernel in _match(operation, graph)]

    def _output(self, operation: OutputOp) -> None:
        copy = copy_out(operation, self._graph)
        self._placed.append((self._graph.place_of(operation), copy))
        dependence = self.dependences[operation.value]
        self.outputs.append(MatchedOutput(operation.symbol.data, copy.out, dependence))


def _needs_kernel(operation: Operation) -> bool:
    """Return whether an operator computes anything; leaves and views do not."""
    return isinstance(operation, CirhOp) and operation.NEEDS_KERNEL


def _match(operation: Operation, graph: Graph) -> tuple[Kernel, ...]:
    matcher = MATCHERS.get(operation.name)
    found = matcher(operation, graph) if matcher else None
    if isinstance(found, Kernel):
        return (found,)
    return found or ()


def _update(operation: UpdatingOp, graph: Graph) -> tuple[str, Optimizer]:
    parameter, optimizer = parameter_of(operation.parameter), optimizer_of(operation)
    if parameter is None or optimizer is None:
        raise _no_kernel(operation, graph)
    return parameter.symbol.data, optimizer


def _adding(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Return the kernels; those that write to a gradient after another one accumulate."""
    written: set[str] = set()
    found = []
    for kernel in kernels:
        gradients = {a.name for a in kernel.writes if a.name.startswith(GRADIENT)}
        found.append(kernel.adding() if gradients & written else kernel)
        written |= gradients
    return tuple(found)


def _check_gradients(kernels: Sequence[Kernel], updates: Sequence[str]) -> None:
    """Check that every gradient is written: otherwise its parameter would silently not be
    updated.
    """
    written = {array.name for kernel in kernels for array in kernel.writes}
    missing = [name for name in updates if GRADIENT + name not in written]
    assert not missing, f"no kernel writes the gradients of {', '.join(missing)}"


def _require_free_names(operations: Sequence[Operation], optimizers: Iterable[Optimizer]) -> None:
    """Raises: CompileError for a weight with the name of another weight's optimizer state"""
    weights = {op.tensor: op for op in operations if isinstance(op, StoredOp)}
    slots = {slot for optimizer in optimizers for slot in optimizer.slots}
    for name, operation in weights.items():
        slot, _, other = name.partition("/")
        if slot in slots and other in weights:
            raise refused(
                operation,
                f"weight {name}: the name is taken in checkpoints by the optimizer's {slot} of "
                f"weight {other}: rename layer {slot}",
            )


def _clipping(operations: Sequence[Operation]) -> Clipping:
    updates = (op for op in operations if isinstance(op, UpdatingOp))
    found = (Clipping.of(op) for op in updates)
    return next((each for each in found if each.options()), UNLIMITED)


def _loss_scaling(operations: Sequence[Operation]) -> LossScaling | None:
    updates = (op for op in operations if isinstance(op, UpdatingOp))
    found = next((op.loss_scaling for op in updates if op.loss_scaling is not None), None)
    if found is None:
        return None
    options = {name: plain(value) for name, value in found.data.items()}
    flags = {name: bool(options[name]) for name in ("exceeds", "is_dynamic")}
    return msgspec.convert({**options, **flags}, LossScaling)


def _counts_padding(graph: Graph, dependences: Dependences) -> str | None:
    """Return the first operator in which padding counts, if it affects a loss, an output or an
    update.
    """
    ends = (op for op in graph.operations if isinstance(op, LossOp | OutputOp | UpdatingOp))
    if not any(dependences[value].counts_padding for op in ends for value in op.operands):
        return None
    first = next(
        op for op in graph.operations if any(dependences[r].counts_padding for r in op.results)
    )
    return f"layer {graph.layer_of(first)}: {first.name}"


def _mixing(graph: Graph, dependences: Dependences) -> Operation | None:
    for op in graph.operations:
        mixed = any(dependences[result].over is BatchRelation.MIXED for result in op.results)
        if mixed and not any(dependences[o].over is BatchRelation.MIXED for o in op.operands):
            return op
    return None


def _state(operation: AssignOp) -> str:
    owner = operation.parameter.owner
    assert isinstance(owner, StateOp), "verified: only states are assigned to"
    return owner.symbol.data


def _no_kernel(operation: Operation, graph: Graph) -> CompileError:
    kinds = [f"{dtype_of(kind)}{text_of(kind)}" for kind in map(type_of, operation.operands)]
    return refused(
        operation,
        f"layer {graph.layer_of(operation)}: no kernel for {operation.name} of "
        f"{' and '.join(kinds)}: build the layer from other operators",
    )
