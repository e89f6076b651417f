"""Sync of the user's model and optimizer with the run's store."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Any
from weakref import WeakSet

import psutil
import torch

from csrun.base.errors import UsageError
from csrun.compiler.optimizers import SLOTS
from csrun.executable.arrays import Array
from csrun.executable.loss_scale import ScaleState
from csrun.pytorch.deferred_init.tape import address, drop_record, is_meta, is_on_meta, materialize
from csrun.pytorch.errors import user_line
from csrun.pytorch.float_types import store_type_of, text_of
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.optimizers.state_proxy import unwrapped_state
from csrun.pytorch.record.model_group import ModelGroup
from csrun.pytorch.record.model_tensors import modules_of, tensors_of
from csrun.pytorch.record.recording import LeafSource, Recording
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.weights.integer_buffers import IntegerBuffers
from csrun.pytorch.weights.store_copies import changed_weights, mapped, read_weights
from csrun.records.checkpoints import Checkpoint
from csrun.records.torch_names import stored_name
from csrun.runtime.step.scale_rows import scale_of

log = logging.getLogger("csrun")

SHARE_OF_MEMORY = 2  # share of the available memory that an optimizer's state may use


class StepWeights:
    """Weights that a recorded step was computed on, by name; empty while the model has them."""

    def __init__(self, recording: Recording) -> None:
        stored = (LeafSource.PARAMETER, LeafSource.BUFFER)
        self._leaves = [leaf for leaf in recording.leaves if leaf.source in stored]
        self.weights: dict[str, torch.Tensor] = {}

    def keep(self, copies: dict[int, torch.Tensor]) -> None:
        """Keep the weights, because the model is about to get others. copies: by tensor, of all
        steps.
        """
        for leaf in self._leaves:
            tensor = leaf.tensor
            if id(tensor) not in copies:
                copies[id(tensor)] = tensor.detach().clone()
            self.weights[leaf.name] = copies[id(tensor)]


class WeightSync:
    """The user's model and optimizer, as the loop sees them.

    Weights of a model built under `meta_init` are memory-mapped from checkpoints, copy-on-write.

    is_in_file: it is such a model.
    are_current: model and optimizer have the store's values, or what the script has written since;
        a new store starts from them.
    before: steps that need the present weights after the model gets others.
    """

    def __init__(self, model: torch.nn.Module, optimization: Optimization | None) -> None:
        self.model, self.optimization = model, optimization
        self.are_current = True
        self._optimizer_was: list[tuple[int, int]] | None = None
        self._written: frozenset[str] | None = None
        self.integers = IntegerBuffers(model)
        self.is_in_file = is_on_meta(model)
        self.before: WeakSet[StepWeights] = WeakSet()

    @cached_property
    def infinite_buffers(self) -> frozenset[str]:
        """Names in a checkpoint of buffers that are not finite before the first step, such as
        min_val of a quantization observer.
        """
        with unrecorded():
            return frozenset(
                stored_name(name)
                for name, buffer in self.model.named_buffers()
                if not is_meta(buffer) and not buffer.isfinite().all()
            )

    @cached_property
    def store_type(self) -> str | None:
        """Name of the type of the store's weights; None for a model without floats."""
        found = store_type_of(dict(tensors_of(modules_of(self.model))))
        return None if found is None else text_of(found)

    def note_trained(self, recording: Recording, *, is_one_of_many: bool) -> None:
        """Record the buffers that a compiled training step updates.

        is_one_of_many: other steps have other graphs, and all programs have all buffers.

        Raises: UsageError if it updates other buffers than the first one
        """
        written = frozenset(recording.written)
        self._written = written if self._written is None else self._written
        may_differ = is_one_of_many or isinstance(self.model, ModelGroup)
        if (odd := sorted(written ^ self._written)) and not may_differ:
            raise UsageError(
                f"{user_line()}: {', '.join(odd)} are updated in some training steps and not in "
                "others: leave train() and eval() of norms as in the first step, or train in "
                "another Session after cbtorch.initialize with a new model_dir"
            )

    def copy_weights(self, state: Mapping[str, Array]) -> None:
        """Copy the store's weights into the model; values of earlier steps keep the old ones."""
        self.keep_weights()
        read_weights(self.model, state)

    def set_tensors(self, values: Mapping[str, torch.Tensor]) -> None:
        """Set tensors of the model that have memory, by name."""
        with unrecorded(), torch.no_grad():
            for name, tensor in tensors_of(modules_of(self.model)):
                if name in values and not is_meta(tensor):
                    tensor.copy_(values[name])

    def keep_weights(self) -> None:
        """Make values of earlier steps keep the weights, because the model is about to get
        others.
        """
        copies: dict[int, torch.Tensor] = {}
        if not self.is_in_file:
            with unrecorded():
                for each in list(self.before):  # a copy may end a step, which adds to them
                    each.keep(copies)
        self.before.clear()

    def copy_all(self, state: Mapping[str, Array], step: int, scale: ScaleState | None) -> None:
        """Set model and optimizer to their values after this many steps, with this loss scale."""
        self.copy_weights(state)
        self._write_optimizer(state, step, scale)
        self.are_current = not is_on_meta(self.model)

    def _write_optimizer(
        self, state: Mapping[str, Array], step: int, scale: ScaleState | None
    ) -> None:
        """Set integer buffers and the optimizer's state after this many steps."""
        self.integers.write()
        if self.optimization is not None and self._has_room(state):
            skipped = 0 if scale is None else int(scale.skipped)
            self.optimization.copy_back(state, step, skipped)
            self._optimizer_was = self._optimizer_state()

    def load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Set model and optimizer to the values of an earlier run's checkpoint."""
        if self.is_in_file:
            state: Mapping[str, Array] = mapped(checkpoint.path)
        else:
            state = {name: checkpoint.tensor(name) for name in checkpoint.manifest.tensors}
        self.copy_all(state, checkpoint.step, scale_of(checkpoint))

    def changed_weights(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """Return the model's values that differ from the store's, by their names there."""
        return changed_weights(self.model, state)

    def has_unchanged_optimizer(self) -> bool:
        """True if the optimizer's state is unchanged since the last copy, if there was one."""
        return self._optimizer_was is None or self._optimizer_was == self._optimizer_state()

    def require_unchanged_optimizer(self) -> None:
        """Raises: UsageError if the script has changed the optimizer's state since"""
        if not self.has_unchanged_optimizer():
            raise UsageError(
                f"{user_line()}: the optimizer's state was changed after the last Session, by "
                "load_state_dict or steps in PyTorch, and the run's store has its own: start "
                "another run with cbtorch.initialize(model_dir=...) and a new optimizer"
            )

    def _optimizer_state(self) -> list[tuple[int, int]]:
        assert self.optimization is not None, "asked of a training"
        states = unwrapped_state(self.optimization.optimizer).values()
        tensors = [x for state in states for x in state.values() if isinstance(x, torch.Tensor)]
        return [(id(x), x._version) for x in tensors]

    def map_weights(self, checkpoint: Checkpoint, state: Mapping[str, Array]) -> None:
        """Map the weights from a checkpoint with the store's values, at the end of the block.

        Meta tensors are materialized after the first block; later ones are mapped again.
        """
        numbers = self._value_source(checkpoint)
        for _, tensor in self._tensors_without_memory():
            found = numbers(tensor)
            drop_record(tensor)
            _swap(tensor, found)
        for tensor, found in self._mapped_tensors(checkpoint):
            tensor.data = found
        self._write_optimizer(state, checkpoint.step, scale_of(checkpoint))
        self.are_current = True
        log.info(f"The model's weights are in {checkpoint.path}")

    def _mapped_tensors(
        self, checkpoint: Checkpoint
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the model's tensors with those of the file."""
        tensors = mapped(checkpoint.path)
        for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            if (stored := stored_name(name)) in tensors:
                yield tensor, torch.from_numpy(tensors[stored]).to(tensor.dtype)

    def state_dict(
        self, given: dict[str, Any], checkpoint: Callable[[], Checkpoint]
    ) -> dict[str, Any]:
        """Return a state_dict in which each tensor has memory."""
        if self._tensors_without_memory():
            numbers = self._value_source(checkpoint())
            for key, x in given.items():
                given[key] = numbers(x) if isinstance(x, torch.Tensor) and is_meta(x) else x
        return given

    def _tensors_without_memory(self) -> list[tuple[str, torch.Tensor]]:
        named = (*self.model.named_parameters(), *self.model.named_buffers())
        return [(name, x) for name, x in named if is_meta(x)]

    def _value_source(self, checkpoint: Checkpoint) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a function from a tensor to its value: the checkpoint's, or the initial one."""
        tensors = mapped(checkpoint.path)
        names = {address(x): stored_name(name) for name, x in self._tensors_without_memory()}

        def numbers(x: torch.Tensor) -> torch.Tensor:
            stored = tensors.get(names[address(x)])
            return materialize(x) if stored is None else torch.from_numpy(stored).to(x.dtype)

        return numbers

    def _has_room(self, state: Mapping[str, Array]) -> bool:
        """True if there is enough memory for the optimizer's state of a model without memory."""
        if not self.is_in_file:
            return True
        weights = [stored_name(name) for name, _ in self.model.named_parameters()]
        names = (f"{slot}/{weight}" for slot in SLOTS for weight in weights)
        slots = [name for name in names if name in state]
        needed = sum(prod(state[name].shape) * state[name].dtype.itemsize for name in slots)
        if needed * SHARE_OF_MEMORY <= psutil.virtual_memory().available:
            return True
        log.warning(
            f"The optimizer's state, {needed >> 20:,} MB, stays in the checkpoint: it does not fit "
            "into half of the free memory, so the optimizer has none after the block"
        )
        return False


def require_memory(model: torch.nn.Module) -> None:
    """Raises: UsageError for a model whose weights have no memory"""
    if is_on_meta(model):
        raise UsageError(
            f"{user_line()}: a model built under cbtorch.meta_init() has no memory in the "
            "Session's block: read its state_dict(), which saves a checkpoint"
        )


def _swap(tensor: torch.Tensor, real: torch.Tensor) -> None:
    """Allocate a model's tensor; it keeps its identity for all references."""
    if isinstance(tensor, torch.nn.Parameter):
        real = torch.nn.Parameter(real, tensor.requires_grad)
    tensor.grad = None
    torch.utils.swap_tensors(tensor, real)
