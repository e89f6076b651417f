"""Separation of a recorded update into its own program, for a step computed in parts.

A recorded update consists of operators after the backward pass, and needs the gradients of the full
batch. If a step is computed in parts, its program has the gradients of one part: it passes them to
states, in which the parts are accumulated like gradients, and the update's program runs after all
parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.base.mode import RunMode
from csrun.cirh import Builder, new_module, set_storage, storage_of
from csrun.cirh.ops.arithmetic import MulOp
from csrun.cirh.ops.learning import UPDATE_SCOPE, AssignOp, is_of_update
from csrun.cirh.ops.model import (
    Distribution,
    InitializerAttr,
    InputOp,
    LeafOp,
    LossOp,
    StateOp,
    StoredOp,
)
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.types import tensor_type, type_of
from csrun.compiler.batch_parts import rebatch
from csrun.compiler.options import CompileOptions

#: Layer of the states with the sums of gradients.
SUMS_SCOPE = f"{UPDATE_SCOPE}/gradients"
#: Name of the update's input, which has as many rows as there are systems.
WRITES = "writes"


def update_options(options: CompileOptions) -> CompileOptions:
    """Return the options of the update's program: it runs once per step, on all systems."""
    return replace(
        options,
        micro_batches=1,
        replicas=1,
        minibatches_in_flight=1,
        group_bytes=1,  # a group's states must be adjacent in the store of the step's program
        recompute=False,
        record_steps=None,
        number_ranges=None,
        chosen_for=(),
    )


def separate_update(
    module: ModuleOp, options: CompileOptions, is_updated: Callable[[str], bool]
) -> ModuleOp:
    """Remove the recorded update from a step's module, and return it as another module.

    is_updated: whether the update assigns a state, by name. The module still has the full batch.
        Since the next values of a state are summed over several systems, only the first system
        contributes: the update's input, `WRITES`, is 1 there and 0 on others.
    """
    found, made = _Update(list(module.ops), is_updated), new_module("float32", RunMode.TRAIN)
    if (storage := storage_of(module)) is not None:
        set_storage(made, storage)
    found.write(made.body.block, options.systems)
    found.leave_sums(module.body.block)
    made.verify()
    module.verify()
    rebatch(made, update_options(options), options.systems)
    return made


@dataclass(frozen=True)
class _Update:
    """Operators of a step with a recorded update; is_updated: as in `separate_update`."""

    operations: Sequence[Operation]
    is_updated: Callable[[str], bool]

    @property
    def assignments(self) -> list[AssignOp]:
        """Assignments of the update."""
        found = (op for op in self.operations if isinstance(op, AssignOp))
        return [op for op in found if self.is_updated(_state(op).symbol.data)]

    @property
    def computing(self) -> list[Operation]:
        """Operators of the update that are neither states nor assignments."""
        return [op for op in self.operations if is_of_update(op) and not isinstance(op, StoredOp)]

    @property
    def taken(self) -> list[SSAValue]:
        """Values that the update uses from the step."""
        own = set(self.computing)
        ends = [op.grad for op in self.assignments]
        read = [operand for op in self.computing for operand in op.operands] + ends
        return [value for value in dict.fromkeys(read) if value.owner not in own]

    @property
    def sums(self) -> list[SSAValue]:
        """Values used from the step that depend on the batch: gradients."""
        return [v for v in self.taken if not isinstance(v.owner, LeafOp)]

    def write(self, block: Block, systems: int) -> None:
        """Write the update from sums of gradients, as a program for all systems."""
        builder = Builder(InsertPoint.at_end(block))
        writes = builder.leaf(InputOp, tensor_type((systems,), "float32"), symbol=WRITES)
        copies: dict[SSAValue, SSAValue] = {}
        # All states: those of a group must be in its program's store as in the step's.
        stored = [op.out for op in self.operations if isinstance(op, StoredOp)]
        for value in dict.fromkeys([*stored, *self.taken]):
            if value in self._sum_names:
                copies[value] = _sum_state(builder, self._sum_names[value], value)
            else:
                _copy(block, value.owner, copies)
        for op in self.computing:
            _copy(block, op, copies)
        with builder.in_scope(UPDATE_SCOPE):  # its numbers are float32 in mixed precision, too
            is_written = builder.emit(SumOp, writes, dims=(0,), keepdim=False)
            builder.effect(LossOp, is_written)
            for op in self.assignments:
                found = builder.emit(MulOp, copies[op.grad], is_written)
                builder.effect(AssignOp, copies[op.parameter], found)

    def leave_sums(self, block: Block) -> None:
        """Make the step's module sum the gradients instead of updating."""
        builder = Builder(InsertPoint.at_end(block))
        for value, name in self._sum_names.items():
            builder.effect(AssignOp, _sum_state(builder, name, value), value)
        for op in (*self.assignments, *reversed(self.computing)):
            Rewriter.erase_op(op)

    @cached_property
    def _sum_names(self) -> dict[SSAValue, str]:
        return {value: f"{SUMS_SCOPE}/{number}" for number, value in enumerate(self.sums)}


def _state(op: AssignOp) -> StateOp:
    assert isinstance(op.parameter.owner, StateOp), "verified: only states are assigned to"
    return op.parameter.owner


def _sum_state(builder: Builder, name: str, value: SSAValue) -> SSAValue:
    zeros = InitializerAttr.of(Distribution.ZEROS)
    with builder.in_scope(SUMS_SCOPE):
        return builder.leaf(StateOp, type_of(value), symbol=name, initializer=zeros, of_step=True)


def _copy(block: Block, op: Operation | Block, copies: dict[SSAValue, SSAValue]) -> None:
    """Add a copy of an operator that reads copies of its operands, and register its results."""
    assert isinstance(op, Operation), "a module has no arguments"
    copied = op.clone(copies)
    copied.location = op.location
    block.add_op(copied)
