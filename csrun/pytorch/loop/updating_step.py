"""A recorded step that computes its own updates: those of several optimizers, in any order."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from csrun.pytorch.loop.left_gradients import LeftGradient, state_of
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.record.model_group import ModelGroup
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.loop_calls import BACKWARD, UPDATE, Call, Calls


class UpdatingCalls(Calls):
    """Calls of a step with its own updates: `backward()` is one of them, and returns gradients."""

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if self.depth or func is not torch.Tensor.backward:
            return super()._record(func, args, kwargs)
        options = dict(zip(_OPTIONS, args[1:], strict=False)) | kwargs
        if any(options.get(name) not in (None, False) for name in _OTHER_GRADIENTS):
            self._recorder.note_varying("backward() is called with options")
        before = self.states_of(self._recorder.model.parameters())
        super()._record(func, args, kwargs)
        loss = args[0] if self.traced is None else self.traced(args[0])
        after = self.states_of(self._recorder.model.parameters())
        if not all(x is None or isinstance(x, Ref | LeftGradient) for x in after):
            self._recorder.note_varying("a gradient does not depend on the step")
        with torch._C.DisableTorchFunction():
            loss = self._recorder.traced(loss).value
        self._note_change(Call(BACKWARD, (loss, *before), after))
        return None

    def states_of(self, params: Iterable[torch.Tensor]) -> tuple[Any, ...]:
        """Return the states of parameters' gradients, as operands."""
        with torch._C.DisableTorchFunction():
            resolve = self._recorder.fresh.resolve
            found = [state_of(resolve(p.grad), self._is_own) for p in params]
            return tuple(x if x is None else self._operand(x) for x in found)

    def _is_own(self, gradient: Any) -> bool:
        return isinstance(gradient, TracedTensor) and gradient.recorder is self._recorder

    def note_update(self, how: tuple[Any, ...], before: tuple[Any, ...]) -> None:
        """Record an optimizer's step, whose operators were recorded last."""
        operators = self._recorder.updates[-1]
        self._note_change(Call(UPDATE, before, (), how, operators=operators))

    def _note_change(self, call: Call) -> None:
        reads = self._recorder.reads
        if reads:
            self._recorder.note_varying_at(reads[0].line, "a value is read before a later update")
        self.found.append(call)


_OPTIONS = ("gradient", "retain_graph", "create_graph", "inputs")  # of backward(), by position
_OTHER_GRADIENTS = ("gradient", "create_graph", "inputs")


class UpdatingStep(RecordedStep):
    """A step with its optimizers. updated: optimizers whose step() was called."""

    CALLS: ClassVar[type[Calls]] = UpdatingCalls
    calls: UpdatingCalls

    def __init__(self, *given: Any) -> None:
        self.updated: set[int] = set()
        self._computed_so_far: dict[Ref, torch.Tensor] = {}
        super().__init__(*given)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Record calls of an optimizer."""
        self.calls.depth += 1  # its calls are not the loop's
        recorder, begin = self._recorder, len(self._recorder.operators)
        recorder.is_in_update = True
        try:
            yield
        finally:
            recorder.is_in_update = False
            recorder.updates.append(slice(begin, len(recorder.operators)))
            self.calls.depth -= 1

    def note_other_update(self, what: str) -> None:
        """Record each step, because an update cannot be expected."""
        self._recorder.note_varying(what)

    def after_backward(self, call: Callable[[], None]) -> None:
        """Set a function that is called after each backward()."""
        self._recorder.backward.on_pass_end = call

    def take_states(self) -> None:
        """Compute with the states that an optimizer has got in this step."""
        self._recorder.take_states()

    def take_new_states(self) -> None:
        """Register buffers for tensors that the step has put into the optimizers' states."""
        recorder, fresh = self._recorder, self._recorder.fresh
        assert isinstance(recorder.model, ModelGroup), "it has optimizers"
        states = recorder.model.states
        states.resolve(lambda x: fresh.traced(x) if fresh.is_taken(x) else x)
        if states.hold_new():
            recorder.take_states()

    def is_of(self, tensor: Any) -> bool:
        """True for a value of this step."""
        return isinstance(tensor, TracedTensor) and tensor.recorder is self._recorder

    def _number_so_far(self, traced: TracedTensor) -> torch.Tensor:
        """Return the numbers of a value that is read in the step; each is computed once."""

        def compute() -> Mapping[Ref, torch.Tensor]:
            so_far, known = self._recorder.so_far(), self._computed_so_far
            return self._numbers.compute(so_far, [traced.value], computed=known)

        return self._before.tensor_of(traced.value, compute)

    def have_returned(self, tensors: Iterable[TracedTensor]) -> None:
        """Make the program return values to the host."""
        self._returned = tuple(x.value for x in tensors)
