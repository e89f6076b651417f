"""Recorder of one step of the user's loop, which runs on traced tensors without values."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from csrun.pytorch.deferred_init.tape import is_deferred, materialize
from csrun.pytorch.errors import CaptureError, call_for_user, user_line
from csrun.pytorch.record.arguments import leaves_of, map_arguments
from csrun.pytorch.record.backward import RecordedBackward
from csrun.pytorch.record.constant_masks import INDEXING, with_places
from csrun.pytorch.record.draws import DRAWING_OPERATORS, ForwardDraws
from csrun.pytorch.record.fresh_tensors import FreshTensors
from csrun.pytorch.record.functions import FunctionCapture
from csrun.pytorch.record.geometry import Geometry, KnownResults
from csrun.pytorch.record.host_operators import HostOperators
from csrun.pytorch.record.in_place import InPlaceWrites, base_of, strided
from csrun.pytorch.record.model_tensors import ModelTensors
from csrun.pytorch.record.new_buffers import new_buffers
from csrun.pytorch.record.plain_tensors import PlainTensors, is_sparse
from csrun.pytorch.record.pytrees import register_containers
from csrun.pytorch.record.recording import (
    STRIDED,
    GraphLeaf,
    LeafSource,
    LoopRead,
    RecordedOperator,
    Recording,
    Ref,
    TensorKind,
    returns_view,
)
from csrun.pytorch.record.repeated import RepeatedOperators
from csrun.pytorch.record.scopes import Scopes
from csrun.pytorch.record.torch_modes import onednn, unrecorded
from csrun.pytorch.record.traced import TracedStorage, TracedTensor, note_bases
from csrun.pytorch.record.unsupported import (
    DRAWS,
    NOT_DENSE,
    NOT_IN_MODEL,
    refusal_of,
)

aten = torch.ops.aten
#: Operators whose result is an alias of the operand.
_SAME = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}
_READS = {aten._local_scalar_dense.default, aten.is_nonzero.default}


class StepRecorder(TorchDispatchMode):
    """Dispatch mode that records the operators within it; `finish` returns the Recording.

        recorder = StepRecorder(model)
        with recorder:
            x, y = recorder.batch(batch)            # the same structure, of traced tensors
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
        recording = recorder.finish()               # at optimizer.step(), which is not recorded

    The model's parameters stay the user's own Parameter objects: they get traced gradients, and
    lose them in `finish`. reader: returns the value of a traced tensor that the loop reads. later:
    defers an operator on values of the finished step, or returns None.

    Raises: CaptureError, with the user's line, for what cannot be recorded
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # its wrapper costs as much as the recording of an operator

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.reader: Callable[[TracedTensor], torch.Tensor] = _no_reader
        self.may_read_in_forward = self.may_draw = False
        self.takes_arguments = False  # tensors of the script that the loop gives to calls
        self.varies = ""  # why other steps may differ from this one, with the first such line
        self.later: Callable[..., Any] | None = None
        self.scopes = Scopes(model)
        self.writes = InPlaceWrites(self)
        self.fresh = FreshTensors(self)
        self.draws = ForwardDraws(self)
        self.host = HostOperators(self)
        self.operators: list[RecordedOperator] = []
        self.repeated = RepeatedOperators(self)
        self.kinds: list[TensorKind] = []
        self.leaves: list[GraphLeaf] = []
        self.counters: dict[str, int] = defaultdict(int)
        self.reads: list[LoopRead] = []
        self._known: dict[
            int, TracedTensor
        ] = {}  # by the id of a user's tensor, which a leaf keeps alive
        self.plain = PlainTensors(self)
        self._model_tensors = ModelTensors(model)
        self.backward = RecordedBackward(self)
        self._entered: ExitStack | None = None
        self._is_finished = False

    @classmethod
    def resume(cls, model: torch.nn.Module, recording: Recording) -> Self:
        """Return a recorder that continues a recording of the model."""
        made = cls(model)
        made.operators, made.kinds = list(recording.operators), list(recording.kinds)
        made.leaves, made.backward.forward_end = list(recording.leaves), recording.forward_end
        made.host.leaves, made.host.in_forward = recording.host_leaves, set(recording.shaped)
        for leaf in recording.leaves:
            if leaf.source in (LeafSource.PARAMETER, LeafSource.BUFFER):
                made._known[id(leaf.tensor)] = made.trace_ref(
                    leaf.value, f"{leaf.source} {leaf.name}"
                )
        return made

    def trace_ref(self, ref: Ref, stored: str = "") -> TracedTensor:
        """Return a traced tensor of a recorded value."""
        kind = self.kinds[ref.number]
        like = Geometry.of(torch.empty(kind.shape, dtype=kind.dtype, device="meta"))
        return TracedTensor(like, ref, TracedStorage(stored), self)

    @cached_property
    def fake(self) -> FakeTensorMode:
        """Mode of PyTorch's fake tensors, for operators whose results are not known."""
        return FakeTensorMode()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.scopes)
            stack.enter_context(FunctionCapture(self))
            stack.enter_context(onednn(False))
            super().__enter__()
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        assert self._entered is not None, "entered before"
        self._entered.close()
        self._entered = None

    def batch(self, batch: Any) -> Any:
        """Return the batch with traced tensors, each an input, in order.

        Raises: CaptureError for a tensor on another device, or an element that is no tensor
        """
        return tree_map(self._trace_input, batch)

    def call_model(self, forward: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Call the model's forward, and return its results with traced tensors."""
        self.draws.begin()
        with self.scopes.in_model():
            results = call_for_user(forward, args, kwargs)
            register_containers(results)
            self.draws.end()
            return self.fresh.resolve(results)

    def _trace_input(self, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            number = sum(leaf.source is LeafSource.INPUT for leaf in self.leaves)
            name = f"batch_{number}"
            return self._add_leaf(given, LeafSource.INPUT, name, f"{LeafSource.INPUT} {name}")
        raise CaptureError(
            f"{user_line()}: a batch must be made of tensors in tuples, lists and dicts, got "
            f"{type(given).__name__}: convert it to a tensor in collate_fn, or leave "
            "cbtorch.dataloader out, so that the chief makes the batches"
        )

    def read_model(self) -> None:
        """Have all of the model's parameters and float buffers among the leaves.

        Modules in their order; the tensors of each as forward has met them, as in other graphs.
        """
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            if tensor.is_floating_point() and not isinstance(tensor, TracedTensor):
                self.traced(tensor)
        place = {name: number for number, (name, _) in enumerate(self.model.named_modules())}
        stored = LeafSource.PARAMETER, LeafSource.BUFFER
        self.leaves.sort(
            key=lambda leaf: place[leaf.name.rpartition(".")[0]] if leaf.source in stored else -1
        )

    def finish(self) -> Recording:
        """Return the recording and remove the parameters' gradients.

        Raises: CaptureError for a gradient that is not of this step
        """
        self._is_finished = True
        for buffer in new_buffers(self.model, self._model_tensors):
            raise buffer.error(self.operators)
        gradients = self.backward.take_gradients()
        for leaf in self.leaves:
            if leaf.name in self.counters:
                raise CaptureError(
                    f"{user_line()}: forward reads the integer buffer {leaf.name}, which it counts "
                    "up and which csrun updates only after the run: make it a float buffer"
                )
        for entry, now in self._model_tensors.restore_replaced():
            self.traced(entry.tensor).value = self.traced(now).value
        return self.so_far(gradients)

    def take_new_buffers(self, compute: Callable[[Recording, Ref], torch.Tensor]) -> bool:
        """Give buffers that forward has created their values; False if there are none.

        Forward must be called again, which finds them there. compute: returns a value of a
        recording

        Raises: CaptureError as `NewBuffer.require_constant`
        """
        made = list(new_buffers(self.model, self._model_tensors))
        recording = self.so_far() if made else None
        for buffer in made:
            assert recording is not None, "there are some"
            buffer.require_constant(recording)
            buffer.set_value(compute(recording, buffer.traced.value))
        if made:
            self._model_tensors = ModelTensors(self.model)
        return bool(made)

    def so_far(self, gradients: Mapping[str, Ref] | None = None) -> Recording:
        """Return the recording so far."""
        gradients, backward = gradients or {}, self.backward
        end = backward.forward_end
        return Recording(
            operators=tuple(self.operators),
            kinds=tuple(self.kinds),
            leaves=tuple(self.leaves),
            loss=backward.loss,
            loss_line=backward.line,
            forward_end=len(self.operators) if end is None else end,
            backward_end=backward.end,
            gradients=gradients,
            first_gradients=backward.first_gradients,
            zeros=frozenset(backward.zeros),
            written={
                leaf.name: self._known[id(leaf.tensor)].value
                for leaf in self.leaves
                if leaf.source is LeafSource.BUFFER
                and self._known[id(leaf.tensor)].value != leaf.value
            },
            counters=dict(self.counters),
            reads=tuple(self.reads),
            training=self.model.training,
            draws=tuple(map(str, self.draws.made)),
            host_leaves=self.host.leaves,
            shaped=frozenset(self.host.in_forward),
            without_gradient=tuple(
                name
                for name, parameter in self.parameters.items()
                if parameter.requires_grad and name not in gradients
            ),
        )

    # Dispatch.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operator, or run it where no operand is traced, or the step is finished."""
        kwargs = kwargs or {}
        if self._is_finished:
            return call_for_user(func, args, kwargs)
        if not torch.is_inference_mode_enabled():
            if func in _SAME and type(args[0]) is TracedTensor:
                return self._alias(self.traced(args[0]))
            if (repeated := self.repeated.results(func, args, kwargs)) is not None:
                return repeated
        given = [a for a in leaves_of(args, kwargs) if isinstance(a, torch.Tensor)]
        if not any(map(self._is_recorded, given)):
            return self._run_untraced(func, given, args, kwargs)
        if any(map(is_sparse, given)):
            func, args, kwargs = self.plain.with_dense(func, args, kwargs)
            given = [a for a in leaves_of(args, kwargs) if isinstance(a, torch.Tensor)]
        if torch.is_inference_mode_enabled():  # PyTorch does not decompose operators there
            raise self.refusal(
                "inference_mode() was entered outside the Session's block: use torch.no_grad()"
            )
        if func in _SAME:
            return self._alias(self.traced(given[0]))
        if func in _READS:
            if name := self._model_tensors.counter_name(given[0]):
                self.scopes.refuse_counter_in_forward(name)
            return self.read(self.traced(given[0])).item()
        if self._counts_up(func, given, args):
            return given[0]
        if func in INDEXING:
            args = with_places(func, args, self.is_constant, self.host.places)
            given = [a for a in leaves_of(args, kwargs) if isinstance(a, torch.Tensor)]
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
        likes, kind = self._geometries(func, args, kwargs)
        found = self.record_known(str(func), func, args, kwargs, likes, kind)
        self.repeated.note(func, args, kwargs, likes, kind)
        return found

    def of_model(self, given: Any) -> TracedTensor | None:
        """Return the traced tensor of a parameter, or of what is known; None for others."""
        known = self._known.get(id(given))
        if known is None and self._model_tensors.is_parameter(given):
            known = self.traced(given)
        return known

    def _is_recorded(self, tensor: torch.Tensor) -> bool:
        return bool(
            isinstance(tensor, TracedTensor)
            or self._model_tensors.find(tensor)
            or self.fresh.is_taken(tensor)
        )

    def is_constant(self, tensor: torch.Tensor) -> bool:
        """True for a plain tensor that forward does not write, and that is not the model's."""
        is_plain = not isinstance(tensor, TracedTensor) and not self.is_owned(tensor)
        return is_plain and not self.fresh.is_taken(tensor)

    def record_strided(
        self, of: TracedTensor, sizes: Any, strides: Any, offset: int | None = None
    ) -> Any:
        """Record as_strided as a view of the tensor's base, whose storage it addresses."""
        base, start = base_of(of), of.like.storage_offset() if offset is None else offset
        if not base.fake.is_contiguous() or base.like.storage_offset():
            raise self.refusal(
                "as_strided, or a write into a view, needs a contiguous tensor: call .contiguous() "
                "before it"
            )
        return self.record(STRIDED, strided, (base, sizes, strides, start), {})

    def record(
        self,
        name: str,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        forward: int | None = None,
    ) -> Any:
        """Record an operator and return its results in its own structure."""
        likes, kind = self._geometries(call, args, kwargs)
        return self.record_known(name, call, args, kwargs, likes, kind, forward)

    def record_known(
        self,
        name: str,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        likes: Sequence[Any],
        kind: Callable[[Any], Any] | None,
        forward: int | None = None,
    ) -> Any:
        """Record an operator whose results' geometries are known. kind: makes their sequence."""
        memories = self._storages_of(call, args, len(likes))
        results = [
            None if like is None else self._add_value(like, memory)
            for like, memory in zip(likes, memories, strict=True)
        ]
        read, read_kwargs = map_arguments(self._read_ref, args, kwargs)
        scope, line = self.scopes.here
        self.operators.append(
            RecordedOperator(
                name=name,
                call=call,
                arguments=read,
                keywords=read_kwargs,
                results=tuple(None if r is None else r.value for r in results),
                line=line,
                scope=scope,
                is_backward=self.scopes.is_backward,
                forward=forward,
            )
        )
        note_bases(results, call, args, kwargs)
        return results[0] if kind is None else kind(results)

    def _geometries(
        self, call: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Callable[[Any], Any] | None]:
        """Return what an operator's results are like, and the type of their sequence."""
        key = _KNOWN.key(call, args, kwargs, _geometry)
        if (known := _KNOWN.get(key)) is not None:
            return known
        fakes, fake_kwargs = map_arguments(_fake, args, kwargs)
        with unrecorded(), self.fake:
            found = call_for_user(call, fakes, fake_kwargs)
        if (kept := _KNOWN.keep(key, found)) is not None:
            return kept
        several = isinstance(found, tuple | list)
        each = [x if isinstance(x, torch.Tensor) else None for x in (found if several else [found])]
        return each, type(found) if several else None

    def require_accepted(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Raises: the error of PyTorch's own function for these arguments"""
        fakes, fake_kwargs = map_arguments(
            lambda a: self.traced(a).fake if isinstance(a, torch.Tensor) else a, args, kwargs
        )
        reads_numbers = suppress(DataDependentOutputException, DynamicOutputShapeException)
        with reads_numbers, unrecorded(), self.fake, torch.no_grad():
            call_for_user(func, fakes, fake_kwargs)

    @property
    def has_loss(self) -> bool:
        """True if `backward()` was called."""
        return self.backward.loss is not None

    def traced(self, tensor: torch.Tensor) -> TracedTensor:
        """Return a tensor's traced one: of a parameter, a buffer or a constant.

        Raises: CaptureError for a tensor of another step or device
        """
        if isinstance(tensor, TracedTensor):
            if tensor.recorder is not self:
                raise self.refusal(tensor.stale_reason)
            return tensor
        if self.fresh.is_taken(tensor):
            return self.fresh.traced(tensor)
        if id(tensor) in self._known:
            return self._known[id(tensor)]
        if entry := self._model_tensors.find(tensor):
            if entry.tensor is not tensor:  # its .data
                return self._alias(self.traced(entry.tensor))
            if entry.source is LeafSource.CONSTANT:
                return self.plain.buffer(tensor, entry.name)
            return self._add_leaf(tensor, entry.source, entry.name, f"{entry.source} {entry.name}")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise self.refusal(NOT_IN_MODEL)
        return self.plain.traced(tensor)

    def add_plain(
        self, numbers: torch.Tensor, source: LeafSource, name: str = "", stored: str = ""
    ) -> TracedTensor:
        """Return a leaf of a plain tensor. stored: the buffer that it is of, if it is of one."""
        return self._add_leaf(numbers, source, name or self.scopes.line, stored)

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """The model's parameters, as they were when the step began."""
        return self._model_tensors.parameters

    def is_owned(self, tensor: torch.Tensor) -> bool:
        """True if a tensor belongs to the model."""
        return self._model_tensors.find(tensor) is not None

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the model's name of a tensor, or None."""
        found = self._model_tensors.find(tensor)
        return None if found is None else found.name

    def refusal(self, what: str) -> CaptureError:
        """Return an error with the current operator's line."""
        return CaptureError(f"{self.scopes.line}: {what}")

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
        if self.scopes.is_in_forward:
            self.fresh.note(func, args, kwargs, found)
        return found

    def note_varying(self, what: str) -> None:
        """Note why other steps may have other graphs or tensors, in the user's line."""
        self.varies = self.varies or f"{user_line()}: {what}"

    def read(self, traced: TracedTensor) -> torch.Tensor:
        """Return a value that the loop reads, or forward, where it may.

        Raises: CaptureError within forward, where it does not run in each step
        """
        if self._is_finished:
            return self.reader(traced)
        if not self.scopes.is_in_forward:
            self.reads.append(LoopRead(traced.value, user_line()))
        elif self.may_read_in_forward:
            self.note_varying("forward reads the value of a tensor")
        else:
            self.scopes.refuse_in_forward()
        return self.reader(traced)

    def _counts_up(self, func: Any, given: Sequence[torch.Tensor], args: Any) -> bool:
        """True if an operator increments an integer buffer, such as batch norm's counter."""
        name = self._model_tensors.counter_name(given[0])
        if name is None or len(given) > 1 or func is not aten.add_.Tensor:
            return False
        self.counters[name] += int(args[1])
        return True

    def _require_supported(self, func: Any, given: Sequence[torch.Tensor]) -> None:
        if error := refusal_of(func, given, self.scopes.line):
            raise error
        if self.scopes.is_backward and self.backward.forward_end is None:
            raise CaptureError(
                f"{user_line()}: gradients are computed outside loss.backward(), as by "
                "torch.autograd.grad: call backward() on the loss"
            )

    # Values.

    def _add_leaf(
        self, tensor: torch.Tensor, source: LeafSource, name: str, stored: str = ""
    ) -> TracedTensor:
        if tensor.device.type != "cpu" and not is_deferred(tensor):
            raise self._device_error(tensor)
        self._require_dense_and_real(tensor)
        # Batches are copied: the place of a slice in the loop's data is of no use.
        offset = 0 if source is LeafSource.INPUT else None
        made = self._add_value(Geometry.of(tensor, offset), TracedStorage(stored))
        is_plain = source in (LeafSource.CONSTANT, LeafSource.SCRIPT)
        numbers = materialize(tensor) if is_plain else tensor
        self.leaves.append(GraphLeaf(made.value, source, name, numbers))
        self._known[id(tensor)] = made
        return made

    def _add_value(self, like: Any, memory: TracedStorage) -> TracedTensor:
        if like.device.type != "cpu":
            raise self._device_error(like)
        if not self.scopes.is_backward:  # the forward operator refuses sparse gradients
            self._require_dense_and_real(like)
        ref = Ref.of(len(self.kinds))
        self.kinds.append(TensorKind(tuple(like.shape), like.dtype))
        return TracedTensor(like, ref, memory, self)

    def _require_dense_and_real(self, tensor: torch.Tensor) -> None:
        """Raises: CaptureError for a sparse or complex tensor"""
        if tensor.layout is not torch.strided:
            raise self.refusal(NOT_DENSE.format(tensor.layout))
        if tensor.is_complex():
            raise self.refusal(
                f"a tensor is {tensor.dtype}, complex numbers are not supported: use two real "
                "tensors, for the real and the imaginary part"
            )

    def _device_error(self, tensor: torch.Tensor) -> CaptureError:
        return self.refusal(
            f"tensors must be on the CPU, got one on {tensor.device}: leave out .to(device), csrun "
            "moves batches and weights itself"
        )

    def _alias(self, of: TracedTensor) -> TracedTensor:
        made = TracedTensor(of.like, of.held, of.memory, self)
        made.view_of = of.view_of
        return made

    def _read_ref(self, argument: Any) -> Any:
        return argument.value if isinstance(argument, TracedTensor) else argument

    @staticmethod
    def _storages_of(call: Any, args: Any, results: int) -> list[TracedStorage]:
        """Return the results' storages: the operand's for views, new ones for others."""
        viewed = next((a for a in leaves_of(args, {}) if isinstance(a, TracedTensor)), None)
        if viewed is not None and (call is strided or returns_view(call)):
            return [viewed.memory] * results
        return [TracedStorage() for _ in range(results)]


def _materialized(argument: Any) -> Any:
    return materialize(argument) if isinstance(argument, torch.Tensor) else argument


_KNOWN = KnownResults()


def _geometry(argument: Any) -> Any:
    return argument.geometry if isinstance(argument, TracedTensor) else argument


def _fake(argument: Any) -> Any:
    return argument.fake if isinstance(argument, TracedTensor) else argument


def _no_reader(traced: TracedTensor) -> torch.Tensor:
    raise CaptureError(
        f"{user_line()}: a value of the step is read, but the recorder has no reader"
    )
