"""Guard of the model's tensors between steps: the run's store has their values."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from operator import is_
from typing import Any, Protocol, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from csrun.base.errors import UsageError
from csrun.pytorch.deferred_init.tape import address
from csrun.pytorch.errors import call_for_user, is_users_call, user_line
from csrun.pytorch.record.arguments import leaves_of, written_by
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.record.unsupported import LATE_BACKWARD
from csrun.pytorch.step.loop_calls import name_of
from csrun.pytorch.step.mutation_counters import ModuleSets, ParameterSets
from csrun.pytorch.step.tokens import LazyTensor
from csrun.pytorch.weights.hidden_reads import hidden_reads
from csrun.pytorch.weights.sync import require_memory

_MEMORY = torch.Tensor.data_ptr
CHECK_INTERVAL = 16  # steps between two checks of the model's tensors


class GuardedState(Protocol):
    """State of the user's model, as used by the guard."""

    @property
    def is_in_store(self) -> bool:
        """True if the store has the values."""

    @property
    def is_stale(self) -> bool:
        """True if the user's tensors may be older than the script's last step."""

    @property
    def are_lost(self) -> bool:
        """True if those values are lost, since an earlier run computed the step."""

    def copy_back(self) -> None:
        """Copy the store's values to the user's tensors."""

    def set_counters(self) -> None:
        """Set the model's integer buffers to their values at this line of the script."""

    def note_write(self, name: str) -> bool:
        """Note that a tensor of the model is about to be written; False if only integer buffers
        have values.
        """

    def note_shared(self) -> None:
        """Note that the loop has an array of such a tensor."""


class WeightGuard(TorchDispatchMode):
    """Mode in which reads of the model's tensors return the store's values.

    sets, module_sets: mutation counters of the block.
    writes: operators that have written a tensor of the model.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # its wrapper costs as much as most operators of the loop

    def __init__(self, model: torch.nn.Module, state: GuardedState) -> None:
        super().__init__()
        self._model, self._state = model, state
        self._open = ExitStack()
        self.sets, self._seen, self._steps = ParameterSets(model, self._set_data), -1, 0
        self.module_sets = ModuleSets(model)
        self._has_begun, self.writes = False, 0
        self._learn()

    def __enter__(self) -> Self:
        super().__enter__()
        self._open.enter_context(self.sets.counted())
        self._open.enter_context(self.module_sets.counted())
        self._open.enter_context(hidden_reads(self._read, self._share))
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.close()
        super().__exit__(*error)

    def _read(self, tensor: torch.Tensor) -> None:
        name = self.name_of(tensor)
        if name and self._state.is_stale:
            self._give_back([name])

    def _give_back(self, names: Iterable[str]) -> None:
        """Make tensors of the model have their values at this line of the script."""
        require_memory(self._model)
        if self._state.is_in_store and self._integers.issuperset(names):
            self._state.set_counters()
        else:
            self._state.copy_back()

    def _share(self, tensor: torch.Tensor) -> None:
        self._read(tensor)
        if self._has_begun and self.name_of(tensor):
            self.writes += 1
            self._state.note_shared()

    def _learn(self) -> None:
        model = self._model
        named = [*model.named_buffers(), *model.named_parameters()]
        self._memories: dict[int, list[str]] = {}
        for name, x in named:
            if x.numel():
                self._memories.setdefault(address(x), []).append(name)
        self._integers = {
            name for name, x in named if not (x.is_floating_point() or x.is_complex())
        }
        held = [
            (f"{path}.{key}" if path else key, tensors, key)
            for path, module in model.named_modules()
            for tensors in (module._parameters, module._buffers)
            for key, tensor in tensors.items()
            if tensor is not None
        ]
        self._names = [name for name, _, _ in held]
        self._owners = [tensors for _, tensors, _ in held]
        self._keys = [key for _, _, key in held]
        self._tensors = list(map(dict.get, self._owners, self._keys))
        self._places = list(map(_MEMORY, self._tensors))

    def begin(self) -> None:
        """Record the model's tensors, at the beginning of the block's first step."""
        self._has_begun = True
        self._learn()

    def _set_data(
        self, parameter: torch.nn.Parameter, value: torch.Tensor, set_it: Callable[[], None]
    ) -> None:
        """Handle an assignment to `parameter.data`, a write that may change the Parameter's memory.

        `model.to("cpu")` assigns each Parameter to its own data, which changes nothing. Holders of
        the earlier memory see the store's values there.

        Raises: UsageError within a step, for another shape, or for the memory of another Parameter
        """
        places = [i for i, known in enumerate(self._tensors) if known is parameter]
        if places and _may_be_written(value):
            with torch.no_grad():
                parameter.copy_(value)
            return
        is_write = not _is_same_view(parameter, value)
        if not (self._has_begun and places and is_write and is_users_call(3)):
            set_it()
            return
        was, before = _kind_of(parameter), address(parameter)
        name = self._names[places[0]]
        if self._state.note_write(name):
            require_memory(self._model)
            self._state.copy_back()
        set_it()
        at = _MEMORY(parameter)
        if _kind_of(parameter) != was or (at != self._places[places[0]] and at in self._places):
            raise _replaced(name)
        if parameter.numel():
            self._memories[before].remove(name)
            self._memories.setdefault(address(parameter), []).append(name)
        for place in places:
            self._places[place] = at

    def check_writes(self) -> None:
        """Check for replaced or moved tensors, after an assignment and at intervals.

        Raises: UsageError as `require_in_place`
        """
        self._steps += 1
        if self._steps >= CHECK_INTERVAL or not self.sets.is_as(self._seen):
            self.require_in_place()

    def require_in_place(self) -> None:
        """Raises: UsageError for a tensor of the model that was replaced or moved in memory"""
        self._seen, self._steps = self.sets.count, 0
        now: list[Any] = list(map(dict.get, self._owners, self._keys))
        if all(map(is_, now, self._tensors)) and list(map(_MEMORY, now)) == self._places:
            return
        was = zip(self._names, now, self._tensors, self._places, strict=True)
        name = next(n for n, x, own, at in was if x is not own or _MEMORY(x) != at)
        raise _replaced(name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator on the store's values.

        Raises: UsageError for a write that comes too early or too late in a step
        """
        kwargs = kwargs or {}
        found = [name for leaf in leaves_of(args, kwargs) if (name := self.name_of(leaf))]
        written = self._written(func, args, kwargs) if found else None
        if written is not None:
            self.writes += 1
        if found and is_users_call() and self._state.is_stale:
            if func.is_view and self._state.are_lost:  # it reads nothing
                return call_for_user(func, args, kwargs)
            if written:
                if not self._state.is_in_store:  # before the block's first step
                    return call_for_user(func, args, kwargs)
                if not self._state.note_write(written):
                    self._state.set_counters()
                    return call_for_user(func, args, kwargs)
                require_memory(self._model)
                self._state.copy_back()
            else:
                self._give_back(found)
        return call_for_user(func, args, kwargs)

    def _written(self, func: Any, args: Any, kwargs: Any) -> str | None:
        """Return the name of the first tensor of the model that an operator writes."""
        if not func._schema.is_mutable:
            return None
        return next(filter(None, map(self.name_of, written_by(func, args, kwargs))), None)

    def bring_up_to_date(self, leaves: Iterable[Any]) -> None:
        """Make tensors of the model among some values have those of this line of the script."""
        if self._state.is_stale:
            self._give_back(filter(None, map(self.name_of, leaves)))

    def write(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Make the loop's write into weights, by numbers of steps.

        Raises: UsageError within a step
        """
        name = next(filter(None, map(self.name_of, leaves_of(args[:1], {}))))
        self.writes += 1
        if self._state.note_write(name):
            require_memory(self._model)
            self._state.copy_back()
        else:
            self._state.set_counters()
        return call_for_user(func, args, kwargs)

    def require_none(self, func: Any, leaves: Iterable[Any]) -> None:
        """Raises: UsageError if a lazy function uses a tensor of the model"""
        if any(map(self.name_of, leaves)):
            if torch._C._current_autograd_node() is not None:
                raise UsageError(f"{user_line()}: {LATE_BACKWARD}")
            raise UsageError(
                f"{user_line()}: {name_of(func)} takes a weight of the model outside of forward, "
                "or differently than in steps 1 to 3: return the weight from forward"
            )

    def name_of(self, leaf: Any) -> str | None:
        """Return the name of the model's tensor that a leaf is, or is a view of."""
        if type(leaf) is not torch.Tensor and not isinstance(leaf, torch.nn.Parameter):
            return None
        names = self._memories.get(address(leaf))
        return names[0] if names else None


def _may_be_written(value: torch.Tensor) -> bool:
    """True for a value of an open step that writes weights itself, and for one of forward."""
    if not isinstance(value, TracedTensor) or value.recorder.is_finished:
        return False
    return value.recorder.has_updates or value.recorder.scopes.is_in_forward


def _replaced(name: str) -> UsageError:
    return UsageError(
        f"{user_line()}: {name} was replaced by another tensor after the first step of the "
        "Session's block (load_state_dict(assign=True), a new Parameter, another shape, the memory "
        "of another one), and the run's store does not see it: write into it, as with p.copy_(...)"
    )


def _is_same_view(parameter: torch.Tensor, value: torch.Tensor) -> bool:
    """True if a value is the same view of a parameter's memory: address, shape, strides, type."""
    with torch._C.DisableTorchFunction():
        is_same_kind = _kind_of(value) == _kind_of(parameter)
        is_same_layout = is_same_kind and value.stride() == parameter.stride()
        return is_same_layout and _MEMORY(value) == _MEMORY(parameter)


def _kind_of(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.device.type, tensor.layout


class WeightCalls(TorchFunctionMode):
    """Mode that matches the loop's calls on weights with those of step 1.

    called: returns the results of such a call, or None; for example of a weight penalty.
    is_on: the mode was entered, and has an effect.
    """

    def __init__(self, called: Callable[..., Any]) -> None:
        super().__init__()
        self._called = called
        self.is_on = self._is_in_call = self._is_left_over = False

    def begin(self) -> None:
        """Enter the mode, unless a call in which it was ended has put it back."""
        if not self._is_left_over:
            self.__enter__()
        self.is_on, self._is_left_over = True, False

    def end(self) -> None:
        """End the mode, if it was entered.

        During a call PyTorch has taken it from the stack and will put it back, above the modes of a
        recording that has begun in the call: it then has no effect until `remove`.
        """
        if self.is_on:
            self.is_on, self._is_left_over = False, self._is_in_call
            if not self._is_in_call:
                self.__exit__(None, None, None)

    def remove(self) -> None:
        """Leave the mode that was ended during a call."""
        if self._is_left_over:
            self._is_left_over = False
            self.__exit__(None, None, None)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Match a call of one of PyTorch's functions; those on tokens match themselves."""
        kwargs = kwargs or {}
        if not self.is_on:
            return call_for_user(func, args, kwargs)
        self._is_in_call = True
        try:
            found = self._match(func, args, kwargs)
            return call_for_user(func, args, kwargs) if found is None else found
        finally:
            self._is_in_call = False

    def _match(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        leaves = leaves_of(args, kwargs)
        if any(isinstance(leaf, LazyTensor) for leaf in leaves):
            return None
        if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return None
        return self._called(name_of(func), func, args, kwargs, leaves, tuple(kwargs))
