"""Graph of a recording in progress: its operators, values and leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from csrun.pytorch.deferred_init.tape import is_deferred, materialize
from csrun.pytorch.errors import CaptureError, call_for_user
from csrun.pytorch.record.arguments import leaves_of, map_arguments
from csrun.pytorch.record.created_tensors import CreatedTensors
from csrun.pytorch.record.geometry import CachedResults, Geometry
from csrun.pytorch.record.in_place import base_of, strided
from csrun.pytorch.record.model_group import ModelGroup
from csrun.pytorch.record.model_tensors import ModelTensors, modules_of, tensors_of
from csrun.pytorch.record.plain_tensors import PlainTensors
from csrun.pytorch.record.recording import (
    STRIDED,
    GraphLeaf,
    LeafSource,
    RecordedOperator,
    Ref,
    TensorKind,
    returns_view,
)
from csrun.pytorch.record.reuse.operator_cache import OperatorCache
from csrun.pytorch.record.scopes import Scopes
from csrun.pytorch.record.shape_rules import SHAPE_RULES
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import SharedValue, TracedStorage, TracedTensor, note_bases
from csrun.pytorch.record.unsupported import NOT_DENSE, NOT_IN_MODEL


class GraphRecorder:
    """Base of the recorder: adds operators and leaves to the graph, and returns traced tensors.

    has_updates: the optimizers are recorded, too.
    known: leaves by the id of a user's tensor, which they keep alive.
    repeated: operators of earlier recordings.
    fresh, plain: tensors of the user that do not belong to the model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.has_updates = isinstance(model, ModelGroup)
        self.model, self._model_tensors = model, ModelTensors(model)
        self.scopes = Scopes(self._model_tensors.modules)
        self.operators: list[RecordedOperator] = []
        self.kinds: list[TensorKind] = []
        self.leaves: list[GraphLeaf] = []
        self.repeated = OperatorCache(self)
        self.known: dict[int, TracedTensor] = {}
        self.fresh = CreatedTensors(self)
        self.plain = PlainTensors(self)

    @property
    def has_loss(self) -> bool:
        """True if `backward()` was called."""
        raise NotImplementedError

    def trace_ref(self, ref: Ref, stored: str = "") -> TracedTensor:
        """Return a traced tensor of a recorded value."""
        kind = self.kinds[ref.number]
        like = Geometry.of(torch.empty(kind.shape, dtype=kind.dtype, device="meta"))
        return self._traced(like, ref, TracedStorage(stored))

    @cached_property
    def fake(self) -> FakeTensorMode:
        """Mode of PyTorch's fake tensors, for operators whose results are not cached."""
        return FakeTensorMode()

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
        name: str | None,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        forward: int | None = None,
    ) -> Any:
        """Record an operator and return its results in its own structure. name: None for its
        own.
        """
        if call is strided:  # a view by a function of csrun's
            likes, kind = self._geometries(call, args, kwargs)
            return self.record_known(STRIDED, call, args, kwargs, likes, kind, forward)
        found = self.repeated.results(call, args, kwargs, forward)
        if found is not None:
            return found
        likes, kind = self._geometries(call, args, kwargs)
        found = self.record_known(name or str(call), call, args, kwargs, likes, kind, forward)
        self.repeated.note(call, args, kwargs, likes, kind)
        return found

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
        """Record an operator with known geometries of results. kind: type of their sequence."""
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
        """Return the geometries of an operator's results, and the type of their sequence."""
        key = _KNOWN.key(call, args, kwargs, _kind if call in _OF_ANY_NUMBER else _geometry)
        if (known := _KNOWN.get(key)) is not None:
            return known
        fakes, fake_kwargs = map_arguments(_fake, args, kwargs)
        with unrecorded(), self.fake:
            found = call_for_user(SHAPE_RULES.get(call, call), fakes, fake_kwargs)
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

    def refusal(self, what: str) -> CaptureError:
        """Return an error with the current operator's line."""
        return CaptureError(f"{self.scopes.line}: {what}")

    # Tensors of the user.

    def of_model(self, given: Any) -> TracedTensor | None:
        """Return the traced tensor of a parameter, or of a known tensor; None for others."""
        known = self.known.get(id(given))
        if known is None and self._model_tensors.is_parameter(given):
            known = self.traced(given)
        return known

    def take_states(self) -> None:
        """Record the states that an optimizer has got in this step, as buffers of the model."""
        self._model_tensors.add_new_buffers()

    def is_recorded(self, tensor: torch.Tensor) -> bool:
        """True for a traced tensor, and for a tensor that stands for one."""
        return bool(
            isinstance(tensor, TracedTensor)
            or self._model_tensors.find(tensor)
            or self.fresh.is_taken(tensor)
        )

    def is_constant(self, tensor: torch.Tensor) -> bool:
        """True for a plain tensor that forward does not write, and that does not belong to the
        model.
        """
        is_plain = not isinstance(tensor, TracedTensor) and not self.is_owned(tensor)
        return is_plain and not self.fresh.is_taken(tensor)

    def traced(self, tensor: torch.Tensor) -> TracedTensor:
        """Return the traced tensor of a parameter, a buffer or a constant.

        Raises: CaptureError for a tensor of another step or device
        """
        if isinstance(tensor, TracedTensor):
            if tensor.recorder is not self:
                self.take_earlier(tensor)
            return tensor
        if self.fresh.is_taken(tensor):
            return self.fresh.traced(tensor)
        if id(tensor) in self.known:
            return self.known[id(tensor)]
        if entry := self._model_tensors.find(tensor):
            if entry.tensor is not tensor:  # its .data
                return self.alias(self.traced(entry.tensor))
            if entry.source is LeafSource.CONSTANT:
                return self.plain.buffer(tensor, entry.name)
            return self.add_leaf(tensor, entry.source, entry.name, f"{entry.source} {entry.name}")
        if tensor.requires_grad and torch.is_grad_enabled() and not self._may_require_grad(tensor):
            raise self.refusal(NOT_IN_MODEL)
        return self.plain.traced(tensor)

    def take_earlier(self, tensor: TracedTensor) -> None:
        """Raises: CaptureError for a value of another step"""
        raise self.refusal(tensor.stale_reason)

    def _may_require_grad(self, tensor: torch.Tensor) -> bool:
        """True for a tensor that forward has created, whose gradient ends with the step, and for a
        tensor of the script that a recorded step may differentiate with respect to.
        """
        if self.fresh.has(tensor):
            return True
        if not self.has_updates or isinstance(tensor, torch.nn.Parameter):
            return False
        self.plain.note_varying(tensor)
        return True

    def add_plain(
        self, numbers: torch.Tensor, source: LeafSource, name: str = "", stored: str = ""
    ) -> TracedTensor:
        """Add a leaf for a plain tensor. stored: the buffer that it belongs to, if any."""
        return self.add_leaf(numbers, source, name or self.scopes.line, stored)

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """The model's parameters at the beginning of the step."""
        return self._model_tensors.parameters

    def is_owned(self, tensor: torch.Tensor) -> bool:
        """True if a tensor belongs to the model."""
        return self._model_tensors.find(tensor) is not None

    def is_own(self, tensor: torch.Tensor) -> bool:
        """True if a tensor is the model's own, not its `.data`."""
        found = self._model_tensors.find(tensor)
        return found is not None and found.tensor is tensor

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the model's name of a tensor, or None."""
        found = self._model_tensors.find(tensor)
        return None if found is None else found.name

    def counter_name(self, tensor: torch.Tensor) -> str | None:
        """Return the name of an integer or boolean buffer of the model, None for another tensor."""
        if isinstance(tensor, TracedTensor):
            return None
        return self._model_tensors.counter_name(tensor)

    # Values.

    def add_leaf(
        self, tensor: torch.Tensor, source: LeafSource, name: str, stored: str = ""
    ) -> TracedTensor:
        if tensor.device.type != "cpu" and not is_deferred(tensor):
            raise self._device_error(tensor)
        self._require_dense(tensor)
        if tensor.is_complex() and source is not LeafSource.CONSTANT:
            raise self.refusal(
                f"a tensor is {tensor.dtype}, only constants may be complex: use two real "
                "tensors, or torch.view_as_complex of one"
            )
        # Batches are copied: the position of a slice in the loop's data is irrelevant.
        offset = 0 if source is LeafSource.INPUT else None
        made = self._add_value(Geometry.of(tensor, offset), TracedStorage(stored))
        is_plain = source in (LeafSource.CONSTANT, LeafSource.SCRIPT)
        numbers = materialize(tensor) if is_plain else tensor
        self.leaves.append(GraphLeaf(made.value, source, name, numbers))
        self.known[id(tensor)] = made
        return made

    def _add_value(self, like: Any, memory: TracedStorage) -> TracedTensor:
        if like.device.type != "cpu":
            raise self._device_error(like)
        if not self.scopes.is_backward:  # the forward operator refuses sparse gradients
            self._require_dense(like)
        ref = Ref.of(len(self.kinds))
        self.kinds.append(TensorKind(tuple(like.shape), like.dtype))
        return self._traced(like, ref, memory)

    def _traced(self, like: Any, value: Ref | SharedValue, memory: TracedStorage) -> TracedTensor:
        recorder: Any = self  # which is a StepRecorder
        return TracedTensor(like, value, memory, recorder)

    def _require_dense(self, tensor: torch.Tensor) -> None:
        """Raises: CaptureError for a sparse tensor"""
        if tensor.layout is not torch.strided:
            raise self.refusal(NOT_DENSE.format(tensor.layout))

    def _device_error(self, tensor: torch.Tensor) -> CaptureError:
        return self.refusal(
            f"tensors must be on the CPU, got one on {tensor.device}: leave out .to(device), csrun "
            "moves batches and weights itself"
        )

    def read_model(self, first: Sequence[str]) -> None:
        """Make all of the model's parameters and float buffers leaves.

        They are in the order of modules; the tensors of each module are in the order of the first
        training's program, which defined the store's layout, then others in the order of forward.
        first: their names there.
        """
        modules = modules_of(self.model)
        for _, tensor in tensors_of(modules):
            if tensor.is_floating_point() and not isinstance(tensor, TracedTensor):
                self.traced(tensor)
        place = {name: number for number, name in enumerate(modules)}
        in_module = {name: number for number, name in enumerate(first)}
        stored = LeafSource.PARAMETER, LeafSource.BUFFER

        def key(leaf: GraphLeaf) -> tuple[int, int]:
            if leaf.source not in stored:
                return -1, 0
            return place[leaf.name.rpartition(".")[0]], in_module.get(leaf.name, len(first))

        self.leaves.sort(key=key)

    def alias(self, of: TracedTensor) -> TracedTensor:
        made = self._traced(of.like, of.held, of.memory)
        made.view_of = of.view_of
        return made

    def forget_values(self) -> None:
        """Forget all operators and values but the batch."""
        inputs = [leaf for leaf in self.leaves if leaf.source is LeafSource.INPUT]
        traced = {id(leaf.tensor): self.known[id(leaf.tensor)] for leaf in inputs}
        self.operators.clear()
        del self.kinds[len(inputs) :]
        self.leaves[:] = inputs
        self.known.clear()
        self.known |= traced
        self.plain.forget()

    def _read_ref(self, argument: Any) -> Any:
        return argument.value if isinstance(argument, TracedTensor) else argument

    @staticmethod
    def _storages_of(call: Any, args: Any, results: int) -> list[TracedStorage]:
        """Return the results' storages: the operand's for views, new ones otherwise."""
        viewed = next((a for a in leaves_of(args, {}) if isinstance(a, TracedTensor)), None)
        if viewed is not None and (call is strided or returns_view(call)):
            return [viewed.memory] * results
        return [TracedStorage() for _ in range(results)]


_KNOWN = CachedResults()
#: Operators whose results have the same geometry for any number, such as an optimizer's step size.
_OF_ANY_NUMBER = frozenset(
    getattr(torch.ops.aten, name).Tensor for name in ("add", "sub", "mul", "div")
)


def _geometry(argument: Any) -> Any:
    return argument.geometry if isinstance(argument, TracedTensor) else argument


def _kind(argument: Any) -> Any:
    return float if type(argument) is float else _geometry(argument)


def _fake(argument: Any) -> Any:
    return argument.fake if isinstance(argument, TracedTensor) else argument
