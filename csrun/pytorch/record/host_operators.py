"""Operators computed by the host in each step, because the shapes of their results depend on
values.

The positions where a mask is true are an example. A program takes the results as inputs of each
step; results of other shapes need another graph. Results that depend on weights are read in
mid-step, like any value that forward reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.arguments import leaves_of, map_arguments, tensors_in
from csrun.pytorch.record.draws import ForwardDraws
from csrun.pytorch.record.geometry import Geometry
from csrun.pytorch.record.plain_tensors import PlainTensors
from csrun.pytorch.record.recording import (
    HOST,
    GraphLeaf,
    LeafSource,
    RecordedOperator,
    Ref,
    ancestors_of,
)
from csrun.pytorch.record.scopes import Scopes
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor

#: Name of the operator that compares indices.
DISTINCT = "distinct"
#: Name, in a recording, of the operator that gives the positions where a mask is true.
PLACES = f"{HOST}places"
_TRUTHS = (torch.bool, torch.uint8)
_OF_BATCH = LeafSource.INPUT, LeafSource.CONSTANT, LeafSource.SCRIPT


class _HostedRecorder(Protocol):
    """The recorder, as used here."""

    operators: list[RecordedOperator]
    leaves: list[GraphLeaf]
    scopes: Scopes
    draws: ForwardDraws
    plain: PlainTensors
    may_read_in_forward: bool
    varies: str
    reader: Callable[[TracedTensor], torch.Tensor]

    def traced(self, tensor: torch.Tensor) -> TracedTensor: ...

    def record_known(
        self,
        name: str,
        call: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        likes: Sequence[Any],
        kind: Callable[[Any], Any] | None,
    ) -> Any: ...

    def note_varying(self, what: str) -> None: ...


class OtherShapesError(Exception):
    """The host has computed a result of another shape than in step 1."""


@dataclass(frozen=True)
class HostOperator:
    """An operator whose results must have the shapes of step 1.

    Raises: OtherShapesError
    """

    func: Callable[..., Any]

    def __call__(self, *args: Any, shapes: tuple[Any, ...], **kwargs: Any) -> Any:
        """Compute the results."""
        found = call_for_user(self.func, args, kwargs)
        if _shapes_of(found) != shapes:
            raise OtherShapesError
        return found


def places_of(mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the positions where a mask is true, as an index for each axis."""
    places: tuple[torch.Tensor, ...] = mask.nonzero(as_tuple=True)
    return places


def distinct_of(indices: Sequence[torch.Tensor | None], sizes: Sequence[int]) -> Any:
    """Return the indices of some axes, counted from 0, which select no element twice.

    sizes: of all axes.

    Raises: OtherShapesError if they repeat
    """
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    found = tuple(
        torch.where(index < 0, index + sizes[axis], index) for axis, index in given.items()
    )
    flat = torch.zeros((), dtype=torch.int64)
    for axis, index in zip(given, found, strict=True):
        flat = flat * sizes[axis] + index
    if flat.unique().numel() != flat.numel():
        raise OtherShapesError
    return found


class HostOperators:
    """Operators of one recording that the host computes.

    reader: returns the numbers of a value of the batch; None if there are none.
    drawing: names of operators that draw on the wafer.
    leaves: results that the program takes.
    in_forward: results within forward, whose shapes its Python may read.
    row_axes: as in a Recording that the recorder continues.
    are_rows_counted: the script has read the size of a tensor with as many rows as a mask selects.
    """

    def __init__(self, recorder: _HostedRecorder) -> None:
        self._recorder = recorder
        self.reader: Callable[[TracedTensor], torch.Tensor] | None = None
        self.drawing: Collection[str] = ()
        self.leaves: tuple[GraphLeaf, ...] = ()
        self.in_forward: set[Ref] = set()
        self.are_rows_counted = False
        self.row_axes: Mapping[Ref, int] = {}
        self._numbers: dict[Ref, tuple[str, torch.Tensor]] = {}  # with the user's line
        self._places: dict[Ref, tuple[TracedTensor, ...]] = {}  # by the mask
        self._compared: dict[Any, tuple[TracedTensor, ...]] = {}  # by sizes and indices
        self._is_off = False

    def forget(self) -> None:
        """Forget the indices that are known, because the step is recorded from its beginning."""
        self._places.clear()
        self._compared.clear()

    @contextmanager
    def off(self, is_off: bool = True) -> Iterator[None]:
        """Context manager in which no operator is recorded, unless `is_off` is False."""
        before, self._is_off = self._is_off, is_off
        try:
            yield
        finally:
            self._is_off = before

    def places(self, mask: torch.Tensor) -> tuple[TracedTensor, ...] | None:
        """Return the positions where a mask is true; None if they are not recorded."""
        if not isinstance(mask, TracedTensor) or not mask.dim():
            return None
        value = mask.value
        if value not in self._places:
            reader = self._reader_of([mask])
            if reader is None:
                return None
            self._places[value] = self._record("places", places_of, (mask,), {}, reader)
        return self._places[value]

    def note_size_read(self, tensor: Any) -> None:
        """Note that the script reads the size of a tensor."""
        if not isinstance(tensor, TracedTensor):
            return
        for places in self._places.values():
            if places[0].geometry.shape[0] in tensor.geometry.shape:
                self.are_rows_counted = True

    def distinct(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of an operator with indices that the host compares in each step.

        They are unchanged if the indices repeat, are constants or places of a mask, or depend on
        weights.
        """
        is_read = func is torch.ops.aten.index.Tensor
        if self.reader is None or self._is_off or (is_read and not self._compared):
            return args
        target, indices, *others = args
        tensors = [index for index in indices if index is not None]
        if any(index.dtype in _TRUTHS for index in tensors):
            return args
        if not is_read and (others[0].numel() == 1 or any(others[1:])):  # one number, or added
            return args
        recorder = self._recorder
        varies = bool(recorder.varies) and not is_read  # indices made of a value that was read
        if not any(
            varies or isinstance(x, TracedTensor) or recorder.plain.is_varying(x) for x in tensors
        ):
            return args
        with unrecorded():
            traced = [recorder.traced(index) for index in tensors]
        found = self._compared_to(traced, indices, tuple(target.shape), is_read)
        each = iter(found)
        return target, [None if index is None else next(each) for index in indices], *others

    def _compared_to(
        self,
        traced: Sequence[TracedTensor],
        indices: Sequence[Any],
        sizes: tuple[int, ...],
        is_read: bool,
    ) -> Sequence[TracedTensor]:
        """Return indices as the host has compared them; unchanged if it has not.

        The backward pass of a write reads and writes by the same indices.
        """
        key = sizes, tuple(index is None for index in indices), *(x.value for x in traced)
        if key in self._compared or is_read or self._recorder.scopes.is_backward:
            return self._compared.get(key, traced)
        reader = self.reader
        if reader is None or self._are_places(traced):
            return traced
        if self._sources([index.value for index in traced]) is None:
            return traced
        each = iter(traced)
        given = [None if index is None else next(each) for index in indices]
        try:
            found = self._record(DISTINCT, distinct_of, (given,), {"sizes": sizes}, reader)
        except OtherShapesError:
            return traced
        self._compared[key] = found
        return self._compared[key]

    def _are_places(self, indices: Sequence[TracedTensor]) -> bool:
        """True for the positions where masks are true."""
        known = {place.value for each in self._places.values() for place in each}
        return all(index.value in known for index in indices)

    def result(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an operator; None if its shape is known."""
        if torch.Tag.dynamic_output_shape not in func.tags:
            return None
        tensors = tensors_in(args, kwargs)
        reader = None if func is torch.ops.aten.index.Tensor else self._reader_of(tensors)
        if reader is None:
            return None
        traced = map_arguments(
            lambda a: self._recorder.traced(a) if isinstance(a, torch.Tensor) else a, args, kwargs
        )
        return self._record(str(func), func, *traced, reader)

    def are_of_batch(self, tensors: Iterable[torch.Tensor]) -> bool:
        """True if values only depend on the batch and tensors of the script."""
        return self._sources([t.value for t in tensors if isinstance(t, TracedTensor)]) is not None

    def leaves_among(self, values: Collection[Ref]) -> tuple[GraphLeaf, ...]:
        """Return the results among values as leaves."""
        return tuple(
            GraphLeaf(ref, LeafSource.SCRIPT, line, numbers)
            for ref, (line, numbers) in self._numbers.items()
            if ref in values
        )

    @property
    def results(self) -> Collection[Ref]:
        """Results of all operators."""
        return self._numbers.keys()

    def _reader_of(
        self, tensors: Sequence[torch.Tensor]
    ) -> Callable[[TracedTensor], torch.Tensor] | None:
        """Return the function that gives the numbers of operands; None if no operator is
        recorded.
        """
        recorder = self._recorder
        if self._is_off or self.reader is None:
            return None
        with unrecorded():
            traced = [recorder.traced(tensor) for tensor in tensors]
        sources = self._sources([tensor.value for tensor in traced])
        if sources is None:
            if not recorder.may_read_in_forward:
                return None
            recorder.note_varying("the shape of a result depends on weights")
            return recorder.reader
        if any(draw.value in sources for draw in recorder.draws.made):
            recorder.note_varying("the shape of a result depends on random numbers")
        return self.reader

    def _sources(self, values: Sequence[Ref]) -> set[Ref] | None:
        """Return the sources of values; None if weights or dropout are among them."""
        recorder = self._recorder
        found = ancestors_of(recorder.operators, values)
        draws = (op for op in recorder.operators if op.name in self.drawing)
        if any(result in found for op in draws for result in op.results):
            return None
        leaves = (leaf for leaf in recorder.leaves if leaf.value in found)
        return found if all(leaf.source in _OF_BATCH for leaf in leaves) else None

    def _record(
        self,
        name: str,
        func: Any,
        args: Any,
        kwargs: Mapping[str, Any],
        reader: Callable[[TracedTensor], torch.Tensor],
    ) -> Any:
        """Compute an operator and record it. reader: returns the numbers of its operands."""
        recorder = self._recorder
        given, options = map_arguments(
            lambda a: reader(a) if isinstance(a, TracedTensor) else a, args, kwargs
        )
        with unrecorded(), torch.no_grad():
            found = call_for_user(func, given, options)
        each = found if isinstance(found, tuple | list) else (found,)
        results = recorder.record_known(
            f"{HOST}{name}",
            HostOperator(func),
            args,
            {**kwargs, "shapes": _shapes_of(found)},
            [Geometry.of(x) for x in each],
            type(found) if each is found else None,
        )
        for made, numbers in zip(leaves_of((results,), {}), each, strict=True):
            self._numbers[made.value] = recorder.scopes.line, numbers.contiguous()
            if recorder.scopes.is_in_forward:
                self.in_forward.add(made.value)
        return results


def _shapes_of(found: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(x.shape) for x in leaves_of((found,), {}))
