"""Recorder of one step of the user's loop, which runs on traced tensors without values."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from csrun.pytorch.deferred_init.tape import materialize
from csrun.pytorch.errors import CaptureError, call_for_user, user_line
from csrun.pytorch.record import update_numbers
from csrun.pytorch.record.arguments import leaves_of, map_arguments, tensors_in
from csrun.pytorch.record.backward import RecordedBackward
from csrun.pytorch.record.constant_masks import INDEXING, with_places
from csrun.pytorch.record.draws import DRAWING_OPERATORS, ForwardDraws
from csrun.pytorch.record.functions.interception import FunctionCapture
from csrun.pytorch.record.functions.packed_sequences import PackedSequences
from csrun.pytorch.record.graph_recorder import GraphRecorder
from csrun.pytorch.record.host_buffers import HostBuffers
from csrun.pytorch.record.host_operators import HostOperators
from csrun.pytorch.record.host_writes import require_current
from csrun.pytorch.record.in_place import InPlaceWrites
from csrun.pytorch.record.model_group import ModelGroup
from csrun.pytorch.record.model_tensors import ModelTensors
from csrun.pytorch.record.new_buffers import new_buffers
from csrun.pytorch.record.plain_tensors import is_sparse
from csrun.pytorch.record.pytrees import register_containers
from csrun.pytorch.record.recording import (
    LeafSource,
    LoopRead,
    Recording,
    Ref,
)
from csrun.pytorch.record.recording_builder import build_recording
from csrun.pytorch.record.reuse.autograd_graph import are_saved_through_hooks
from csrun.pytorch.record.reuse.call_matcher import CallMatcher, UnknownCalls
from csrun.pytorch.record.tensor_lists import is_of_lists, record_each
from csrun.pytorch.record.torch_modes import onednn
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.record.unsupported import (
    DRAWS,
    refusal_of,
)

aten = torch.ops.aten
#: Operators whose result is an alias of the operand.
_SAME = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_READS = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default}


class StepRecorder(GraphRecorder, TorchDispatchMode):
    """Dispatch mode that records the operators within it; `finish` returns the Recording.

            recorder = StepRecorder(model)
            with recorder:
                x, y = recorder.batch(batch)            # the same structure, of traced tensors
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
            recording = recorder.finish()               # at optimizer.step(), which is not recorded

    The model's parameters stay the user's own Parameter objects: they get traced gradients, and
    lose them in `finish`.

    reader: returns the value of a traced tensor that the loop reads.
    later: defers an operator on values of the finished step, or returns None.

    Raises: CaptureError, with the user's line, for anything that cannot be recorded
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # its wrapper costs as much as the recording of an operator

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.reader: Callable[[TracedTensor], torch.Tensor] = _no_reader
        self.may_read_in_forward = self.may_draw = False
        self.takes_arguments = False  # tensors of the script that the loop passes to calls
        self.is_in_update = False
        self.updates: list[slice] = []  # operators of the optimizers' steps
        # reasons why other steps may differ from this one, with the first such line
        self.varies = ""
        self.later: Callable[..., Any] | None = None
        self.writes = InPlaceWrites(self)
        self.draws = ForwardDraws(self)
        self.host = HostOperators(self)
        self.counters = HostBuffers(self)
        self.packed = PackedSequences(self)
        self.reads: list[LoopRead] = []
        self.backward = RecordedBackward(self)
        self.first_node, self.depth = torch.autograd._get_sequence_nr(), 0
        self.followed: CallMatcher | None = None
        self._entered: ExitStack | None = None
        self._is_finished = False

    @classmethod
    def resume(cls, model: torch.nn.Module, recording: Recording) -> Self:
        """Return a recorder that continues a recording of the model."""
        made = cls(model)
        made.operators, made.kinds = list(recording.operators), list(recording.kinds)
        made.leaves, made.backward.forward_end = list(recording.leaves), recording.forward_end
        made.host.leaves, made.host.in_forward = recording.host_leaves, set(recording.shaped)
        made.host.row_axes = recording.row_axes
        for leaf in recording.leaves:
            if leaf.source in (LeafSource.PARAMETER, LeafSource.BUFFER):
                made.known[id(leaf.tensor)] = made.trace_ref(
                    leaf.value, f"{leaf.source} {leaf.name}"
                )
        return made

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.scopes)
            stack.enter_context(FunctionCapture(self))
            stack.enter_context(onednn(False))
            super().__enter__()
            self.depth = torch._C._len_torch_dispatch_stack()
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        assert self._entered is not None, "entered before"
        self._entered.close()
        self._entered = None
        self._release()

    def batch(self, batch: Any) -> Any:
        """Return the batch with traced tensors, each an input, in order.

        Raises: CaptureError for a tensor on another device
        """
        with torch._C.DisableTorchFunction():  # not calls of the step
            return tree_map(self._trace_input, batch)

    def call_model(self, forward: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Call the model's forward, and return its results with traced tensors."""
        self.draws.begin()
        with self.scopes.in_model():
            results = call_for_user(forward, args, kwargs)
            self.packed.require_padded(results)
            register_containers(results)
            self.draws.end()
            self.counters.take_replaced(self._model_tensors)
            return self.fresh.resolve(results)

    def _trace_input(self, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            number = sum(leaf.source is LeafSource.INPUT for leaf in self.leaves)
            name = f"batch_{number}"
            return self.add_leaf(given, LeafSource.INPUT, name, f"{LeafSource.INPUT} {name}")
        return given

    def follow(self, making: UnknownCalls) -> CallMatcher:
        """Follow the calls of earlier steps from now on, after the batch."""
        batch = tuple(self.known[id(leaf.tensor)].geometry for leaf in self.leaves)
        self.followed = CallMatcher(self, self.repeated.known.tree(batch), making)
        return self.followed

    def restart(self) -> None:
        """Forget everything except the batch: the calls of the step so far are repeated."""
        self.forget_values()
        self.host.forget()
        self.packed.forget()
        self.backward = self.backward.begun_again()
        self.updates.clear()
        self.first_node = torch.autograd._get_sequence_nr()

    def finish(self) -> Recording:
        """Return the recording and remove the parameters' gradients.

        Raises: CaptureError for a gradient that is not of this step
        """
        self._is_finished = True
        if self.followed is not None:
            self.followed.end()
        for buffer in new_buffers(self.model, self._model_tensors):
            raise buffer.error(self.operators)
        gradients = self.backward.take_gradients()
        if isinstance(self.model, ModelGroup):
            self.model.states.take_replaced(self._copy)
        replaced = [(e, self.traced(now).value) for e, now in self._model_tensors.replaced()]
        for entry, value in replaced:  # after all are read, which may have been exchanged
            self._model_tensors.restore(entry)
            self.traced(entry.tensor).value = value
        return self.so_far(gradients)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        copied: torch.Tensor = self.record(None, aten.clone.default, (self.traced(tensor),), {})
        return copied

    def answer(
        self, reader: Callable[[TracedTensor], torch.Tensor], later: Callable[..., Any]
    ) -> None:
        """Read values of the finished step without recording. later: as the attribute."""
        self.reader, self.later = reader, later
        self._release()

    def _release(self) -> None:
        """Drop references to the recorder, so that the last traced tensor frees it."""
        if self.later is not None and not self.is_open:
            self.known.clear()
            self.followed = None
            del self.repeated, self.fresh, self.plain, self.writes
            del self.draws, self.host, self.backward, self.counters, self.packed

    def defer(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the lazy result of a function of values of the finished step.

        None if it also uses weights, or if the recorder belongs to no loop.
        """
        plain = [x for x in leaves_of(args, kwargs) if type(x) in _PLAIN]
        if self.later is None or any(map(self.name_of, plain)):
            return None
        return self.later(func, args, kwargs)

    def take_new_buffers(self, compute: Callable[[Recording, Ref], torch.Tensor]) -> bool:
        """Assign values to buffers that forward has created; False if there are none.

        Forward must then be called again, and finds them. compute: returns a value of a recording.

        Raises: CaptureError as `NewBuffer.require_constant`
        """
        made = list(new_buffers(self.model, self._model_tensors))
        recording = self.so_far() if made else None
        for buffer in made:
            assert recording is not None, "there are some"
            buffer.require_constant(recording, are_written=bool(self.counters.live))
            buffer.set_value(compute(recording, buffer.traced.value))
        if made:
            self._model_tensors = ModelTensors(self.model)
        return bool(made)

    def so_far(self, gradients: Mapping[str, Ref] | None = None) -> Recording:
        """Return the recording so far."""
        return build_recording(self, gradients or {})

    # Dispatch.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operator, or run it if no operand is traced or the step is finished."""
        kwargs = kwargs or {}
        if self._is_finished:
            return call_for_user(func, args, kwargs)
        if is_of_lists(func):
            return record_each(self, func, args, kwargs)
        func = update_numbers.overload_of_tensors(func)
        if self.is_in_update:
            if func._schema.is_mutable and self.writes.is_outside(func, args, kwargs):
                return update_numbers.write_on_host(self, func, args, kwargs)
            if update_numbers.has_number(func, kwargs):
                return update_numbers.record_scaled(self, func, args, kwargs)
        self._observe(args, kwargs)
        if not torch.is_inference_mode_enabled():
            if (repeated := self.repeated.results(func, args, kwargs)) is not None:
                return repeated
            if func in _SAME and type(args[0]) is TracedTensor:
                return self.alias(self.traced(args[0]))
            if _is_plain_write(func) and all(map(self._is_own, leaves_of(args, kwargs))):
                return self.writes.record(func, args, kwargs)
        given = tensors_in(args, kwargs)
        if not any(map(self.is_recorded, given)):
            return self._run_untraced(func, given, args, kwargs)
        if any(map(is_sparse, given)):
            func, args, kwargs = self.plain.with_dense(func, args, kwargs)
            given = tensors_in(args, kwargs)
        if torch.is_inference_mode_enabled():  # PyTorch does not decompose operators there
            raise self.refusal(
                "inference_mode() was entered outside the Session's block: use torch.no_grad()"
            )
        if func in _SAME:
            is_counter = self.counter_name(given[0]) is not None  # whose alias may be written
            return func(*args) if is_counter else self.alias(self.traced(given[0]))
        if func in _READS:
            return call_for_user(func, map(self._numbers_of, given))
        if self.counters.write(func, given, args, kwargs):
            return given[0]
        self.counters.read(given)
        return self._record_operator(func, given, args, kwargs)

    def _observe(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Note an operator for the check of the calls, and for saved tensors of hooks.

        Raises: CaptureError for a packed sequence in the backward pass
        """
        if self.followed is not None:
            self.followed.observe_operator(args, kwargs)
        if are_saved_through_hooks():
            self.backward.is_watched = True
        if self.backward.is_in_progress and self.packed:
            self.packed.require_not_recomputed(args, kwargs)

    def _record_operator(
        self, func: Any, given: list[torch.Tensor], args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        """Record an operator on traced tensors, or compute it on the host; `given`: its tensors."""
        if func in INDEXING:
            args = with_places(func, args, self.is_constant, self.host.places)
            args = self.host.distinct(func, args)
            given = tensors_in(args, kwargs)
        if func in DRAWING_OPERATORS and self.may_draw:
            drawn = self.draws.traced(func, args, kwargs)
            if not func._schema.is_mutable:
                return drawn
            func, args, kwargs, given = aten.copy_.default, (args[0], drawn), {}, [args[0], drawn]
        if (found := self.host.result(func, args, kwargs)) is not None:
            return found
        self._require_supported(func, given)
        if func._schema.is_mutable:
            self.writes.check_given(func, args, kwargs)
        args, kwargs = map_arguments(
            lambda a: self.traced(a) if isinstance(a, torch.Tensor) else a, args, kwargs
        )
        if func._schema.is_mutable:
            return self.writes.record(func, args, kwargs)
        if func is aten.as_strided.default:
            return self.record_strided(*args, **kwargs)
        return self.record(None, func, args, kwargs)

    def _is_own(self, argument: Any) -> bool:
        """True for a traced tensor of this recording, and for anything but a tensor."""
        if type(argument) is TracedTensor:
            return argument.recorder is self
        return not isinstance(argument, torch.Tensor)

    @property
    def has_loss(self) -> bool:
        """True if `backward()` was called."""
        return self.backward.loss is not None

    @property
    def float_type(self) -> torch.dtype:
        """Type of the model's floats."""
        return self.plain.float_type or torch.float32

    @property
    def is_open(self) -> bool:
        """True if the mode is entered."""
        return self._entered is not None

    @property
    def is_finished(self) -> bool:
        """True if the step is finished."""
        return self._is_finished

    # Operators that are not recorded as such.

    def _run_untraced(
        self, func: Any, given: Sequence[torch.Tensor], args: Any, kwargs: Any
    ) -> Any:
        args, kwargs = map_arguments(_materialized, args, kwargs)
        if DRAWS in func.tags:
            found = self.draws.plain(func, args, kwargs)
        else:
            found = call_for_user(func, args, kwargs)
            if any(map(self.plain.is_varying, given)):
                for made in leaves_of((found,), {}):
                    self.plain.note_varying(made)
        # in a backward pass, of an autograd.Function
        if self.scopes.is_in_forward or self.backward.is_in_progress or self.is_in_update:
            self.fresh.note(func, args, kwargs, found)
        return found

    def note_varying(self, what: str) -> None:
        """Record why other steps may have other graphs or tensors, with the user's line."""
        self.note_varying_at(user_line(), what)

    def note_stored_write(self) -> None:
        """Note a write into a weight; only those of forward and of optimizers may be expected."""
        is_of_loop = not (self.is_in_update or self.scopes.is_in_forward)
        if self.has_updates and is_of_loop and not self.backward.is_in_progress:
            self.note_varying("the loop writes a weight")

    def note_varying_at(self, line: str, what: str) -> None:
        """Record such a reason of a line."""
        self.varies = self.varies or f"{line}: {what}"

    def take_earlier(self, tensor: TracedTensor) -> None:
        """Make a value that an optimizer has kept an input. Raises: CaptureError for others"""
        if not self.is_in_update or not update_numbers.as_input(self, tensor):
            super().take_earlier(tensor)

    def read(self, traced: TracedTensor) -> torch.Tensor:
        """Return a value that the loop reads, or forward, if it may.

        Raises: CaptureError within forward, if it does not run in each step
        """
        if self._is_finished:
            return self.reader(traced)
        require_current(self.writes.by_host.stale, traced.value, user_line())
        if not self.scopes.is_in_forward:
            self.reads.append(LoopRead(traced.value, user_line()))
        elif self.may_read_in_forward:
            self.note_varying("forward reads the value of a tensor")
        else:
            self.scopes.refuse_in_forward()
        return self.reader(traced)

    def _numbers_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an operand that an operator reads, with its numbers."""
        is_buffer = self.counters.is_readable(tensor)
        return tensor if is_buffer else self.read(self.traced(tensor))

    def _require_supported(self, func: Any, given: Sequence[torch.Tensor]) -> None:
        if error := refusal_of(func, given, self.scopes.line):
            raise error
        is_early = self.backward.forward_end is None and not self.has_updates
        if self.scopes.is_backward and is_early:
            raise CaptureError(
                f"{user_line()}: gradients are computed outside loss.backward(), such as by "
                "torch.autograd.grad or torch.func: call backward() on the loss, or give the "
                "Session lists, [model] and [optimizer]"
            )


@cache
def _is_plain_write(func: Any) -> bool:
    """Return whether an operator writes in place, and neither draws nor uses indices."""
    is_write = func._schema.is_mutable and func not in INDEXING and func not in DRAWING_OPERATORS
    return is_write and refusal_of(func, (), "") is None


def _materialized(argument: Any) -> Any:
    return materialize(argument) if isinstance(argument, torch.Tensor) else argument


def _no_reader(traced: TracedTensor) -> torch.Tensor:
    raise CaptureError(
        f"{user_line()}: a value of the step is read, but the recorder has no reader"
    )
