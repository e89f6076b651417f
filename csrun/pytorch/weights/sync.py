"""The user's own model and optimizer, given what the run's store holds."""

import logging
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any
from weakref import WeakSet

import psutil
import torch

from csrun.base.errors import UsageError
from csrun.compiler.optimizers import SLOTS
from csrun.executable.bind import Array
from csrun.pytorch.deferred_init.tape import address, forget, is_meta, is_on_meta, real
from csrun.pytorch.errors import user_line
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.optimizers.watched_state import own_state
from csrun.pytorch.record.recording import Recording, Source
from csrun.pytorch.weights.stored import differ, mapped, read_weights
from csrun.records.checkpoints import Checkpoint
from csrun.records.torch_names import stored_name

log = logging.getLogger("csrun")

SHARE_OF_MEMORY = 2  # of what is available an optimizer's state may take one part in so many


class Before:
    """The weights that a recorded step was computed on, by their names; none: they still are."""

    def __init__(self, recording: Recording) -> None:
        stored = (Source.PARAMETER, Source.BUFFER)
        self._leaves = [leaf for leaf in recording.leaves if leaf.source in stored]
        self.weights: dict[str, torch.Tensor] = {}

    def keep(self) -> None:
        """They are about to become others."""
        self.weights = {leaf.name: leaf.tensor.detach().clone() for leaf in self._leaves}


class GivenBack:
    """A model and its optimizer as the loop has them.

    Of a model that `meta_init` has built the weights stay in checkpoints: where the loop or the
    code behind it gets them, they are tensors that lie in such a file, which the system reads as
    they are used; what is written to them stays in memory. is_in_file: it is such a model.
    are_current: they have what the store has, or what the script has written since; a store that is
    made then begins with them. before: what is to have the weights as they are until they are given
    anew.
    """

    def __init__(self, model: torch.nn.Module, optimization: Optimization | None) -> None:
        self.model, self.optimization = model, optimization
        self.are_current = True
        self._optimizer_was: list[tuple[int, int]] | None = None
        self._trained = frozenset[str]()
        self._written: frozenset[str] | None = None
        self._counters: dict[str, tuple[torch.Tensor, int]] = {}
        self.is_in_file = is_on_meta(model)
        self.before: WeakSet[Before] = WeakSet()

    def learn(self, recording: Recording) -> None:
        """A step that trains is compiled.

        Raises: UsageError where it writes other statistics of norms than the first one
        """
        written = frozenset(recording.written)
        self._written = written if self._written is None else self._written
        if odd := sorted(written ^ self._written):
            raise UsageError(
                f"{user_line()}: {', '.join(odd)} are updated in some training steps and not in "
                "others: leave train() and eval() of norms as in the first step, or train in "
                "another Session after cbtorch.initialize with a new model_dir"
            )
        self._trained |= set(recording.gradients)
        buffers = dict(self.model.named_buffers())
        for name, by in recording.counters.items():
            self._counters.setdefault(name, (buffers[name].clone(), by))

    def weights(self, state: Mapping[str, Array]) -> None:
        """Give the model its weights; values of steps are computed on those of before."""
        if not self.is_in_file:
            for each in self.before:
                each.keep()
        self.before.clear()
        read_weights(self.model, state)

    def all(self, state: Mapping[str, Array], step: int) -> None:
        """Give the model and the optimizer what they have after so many steps."""
        self.weights(state)
        self._others(state, step)
        self.are_current = not is_on_meta(self.model)

    def _others(self, state: Mapping[str, Array], step: int) -> None:
        """Give them what is no weight."""
        for name, buffer in self.model.named_buffers():
            if name in self._counters:  # of steps
                first, by = self._counters[name]
                buffer.copy_(first + by * step)
        if self.optimization is not None and self._has_room(state):
            self.optimization.give_back(state, step, self._trained)
            self._optimizer_was = self._optimizer_state()

    def found(self, checkpoint: Checkpoint) -> None:
        """Give them what an earlier run has left."""
        if self.is_in_file:
            self.all(mapped(checkpoint.path), checkpoint.step)
        else:
            names = checkpoint.manifest.tensors
            self.all({name: checkpoint.tensor(name) for name in names}, checkpoint.step)

    def differ(self, state: Mapping[str, Array]) -> bool:
        """Whether the script has written into the model since the store has given it back."""
        return differ(self.model, state)

    def has_optimizer_as_given(self) -> bool:
        """Whether the optimizer's state is what it was given last, if it was given any."""
        return self._optimizer_was in (None, self._optimizer_state())

    def require_optimizer_as_given(self) -> None:
        """Raises: UsageError where the script has changed the optimizer's state since"""
        if not self.has_optimizer_as_given():
            raise UsageError(
                f"{user_line()}: the optimizer's state was changed after the last Session, by "
                "load_state_dict or steps in PyTorch, and the run's store has its own: start "
                "another run with cbtorch.initialize(model_dir=...) and a new optimizer"
            )

    def _optimizer_state(self) -> list[tuple[int, int]]:
        assert self.optimization is not None, "asked of a training"
        states = own_state(self.optimization.optimizer).values()
        tensors = [x for state in states for x in state.values() if isinstance(x, torch.Tensor)]
        return [(id(x), x._version) for x in tensors]

    def end(self, checkpoint: Checkpoint, state: Mapping[str, Array]) -> None:
        """The block is left: the weights lie in a checkpoint's file, which has what the store has.

        In the first block they get memory by that; behind another one they have it anew.
        """
        numbers = self._numbers(checkpoint)
        for _, tensor in self._without_memory():
            found = numbers(tensor)
            forget(tensor)
            _swap(tensor, found)
        for tensor, found in self._in_file(checkpoint):
            tensor.data = found
        self._others(state, checkpoint.step)
        self.are_current = True
        log.info(f"The model's weights are in {checkpoint.path}")

    def _in_file(self, checkpoint: Checkpoint) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The model's tensors and those of the file."""
        tensors = mapped(checkpoint.path)
        for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            if (stored := stored_name(name)) in tensors:
                yield tensor, torch.from_numpy(tensors[stored])

    def state_dict(
        self, given: dict[str, Any], checkpoint: Callable[[], Checkpoint]
    ) -> dict[str, Any]:
        """A state_dict of the model in which each tensor has memory."""
        if self._without_memory():
            numbers = self._numbers(checkpoint())
            for key, x in given.items():
                given[key] = numbers(x) if isinstance(x, torch.Tensor) and is_meta(x) else x
        return given

    def _without_memory(self) -> list[tuple[str, torch.Tensor]]:
        named = (*self.model.named_parameters(), *self.model.named_buffers())
        return [(name, x) for name, x in named if is_meta(x)]

    def _numbers(self, checkpoint: Checkpoint) -> Callable[[torch.Tensor], torch.Tensor]:
        """What gives a tensor's: those of the checkpoint, or first ones, of what is no weight."""
        tensors = mapped(checkpoint.path)
        names = {address(x): stored_name(name) for name, x in self._without_memory()}

        def numbers(x: torch.Tensor) -> torch.Tensor:
            stored = tensors.get(names[address(x)])
            return real(x) if stored is None else torch.from_numpy(stored)

        return numbers

    def _has_room(self, state: Mapping[str, Array]) -> bool:
        """Whether the optimizer's state may be in memory, of a model that is not."""
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
    """Give a tensor of the model's, which others may hold, memory in its own place."""
    if isinstance(tensor, torch.nn.Parameter):
        real = torch.nn.Parameter(real, tensor.requires_grad)
    tensor.grad = None
    torch.utils.swap_tensors(tensor, real)
