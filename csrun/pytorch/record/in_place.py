"""In-place writes: each creates a new value, which all aliases of the tensor then have.

A write to a view becomes a write to its base, through the scatter form of each view between them;
other views of the base are then recomputed.

Source: tinygrad, extra/torch_backend
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._mode_utils import no_dispatch

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.arguments import leaves_of, tensors_in, written_by
from csrun.pytorch.record.host_writes import HostWrites
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import LateValue, TracedTensor, ViewOf

if TYPE_CHECKING:
    from csrun.pytorch.record.recorder import StepRecorder

aten = torch.ops.aten
#: In-place operators whose out-of-place form has another name or other arguments.
_SPECIAL: dict[Any, tuple[Any, Callable[..., tuple[Any, ...]]]] = {
    aten.zero_.default: (aten.zeros_like.default, lambda x: (x,)),
    aten.fill_.Scalar: (aten.full_like.default, lambda x, value: (x, value)),
    aten.pow_.Scalar: (aten.pow.Tensor_Scalar, lambda x, exponent: (x, exponent)),
    aten.pow_.Tensor: (aten.pow.Tensor_Tensor, lambda x, exponent: (x, exponent)),
    aten.transpose_.default: (aten.transpose.int, lambda x, dim0, dim1: (x, dim0, dim1)),
    aten.copy_.default: (aten.copy.default, lambda x, source, *_: (x, source)),
}


#: Options of operators that create a tensor.
_OPTIONS = ("dtype", "layout", "device", "pin_memory")


class InPlaceWrites:
    """In-place writes of one recording."""

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder
        self.by_host = HostWrites(recorder)

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record the out-of-place form, and assign its results to the written tensors."""
        if "out" in kwargs:
            return self._record_into(func, args, kwargs)
        targets = self._written_traced(func, args, kwargs)
        if torch.Tag.inplace_view in func.tags:
            return self._reshape(func, targets[0], args, kwargs)
        if any(target.memory.stored for target in targets):
            self._recorder.note_stored_write()
        call, arguments = self._out_of_place(func, args)
        compute = partial(self._recorder.record, None, call, arguments, kwargs)
        if len(targets) == 1 and self.by_host.write(targets[0], compute):
            return targets[0]
        for target in targets:
            self._check(func, target)
        found = compute()
        for target in filter(self._is_counter, targets):
            self._recorder.counters.write_also(func, target, args, kwargs)
        made = found if isinstance(found, tuple | list) else [found]
        for target, new in zip(targets, made[-len(targets) :], strict=True):
            self._replace_value(target, self._as_type_of(target, new))
        returned = len(func._schema.returns)
        if returned == 0:
            return None
        if len(made) == len(targets):
            return targets[0] if returned == 1 else targets
        return tuple(made[:returned])

    def _record_into(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> TracedTensor:
        """Record an operator that writes its result into `out`."""
        options = dict(kwargs)
        target, call = options.pop("out"), without_out(func)
        if call is None or not isinstance(target, TracedTensor):
            raise self._recorder.refusal(f"{func} has no form without out=: use another operator")
        self._check(func, target)
        if any(isinstance(x, torch.Tensor) for x in leaves_of(args, options)):
            new = self._recorder.record(None, call, args, options)
        else:
            with unrecorded():
                new = self._recorder.traced(call_for_user(call, args, options))
        self._replace_value(target, self._as_type_of(target, new))
        return target

    def _as_type_of(self, target: TracedTensor, new: TracedTensor) -> TracedTensor:
        """Return a result in the type of the tensor that it is written into.

        Raises: CaptureError for types that PyTorch does not cast so, as floats to integers
        """
        if new.dtype == target.dtype:
            return new
        if not torch.can_cast(new.dtype, target.dtype):
            raise self._recorder.refusal(
                f"a result of {new.dtype} is written into a tensor of {target.dtype}: cast it"
            )
        written: TracedTensor = self._recorder.record(None, aten.copy.default, (target, new), {})
        return written

    def _reshape(self, func: Any, target: TracedTensor, args: Any, kwargs: Any) -> TracedTensor:
        """Record `x.squeeze_()` and similar: the tensor becomes a view of its previous value.

        Source: torch.utils._python_dispatch.return_and_correct_aliasing
        """
        call, arguments = self._out_of_place(func, args)
        new = self._recorder.record(str(call), call, arguments, kwargs)
        with no_dispatch():
            call_for_user(func, args, kwargs)  # changes the shape that autograd and the user see
        target.like, target.held, target.view_of = new.like, new.held, new.view_of
        target._fake = None
        return target

    def is_outside(self, func: Any, args: Any, kwargs: Any) -> bool:
        """True if an operator writes traced values into a tensor that the step has not made."""
        if not any(isinstance(x, TracedTensor) for x in tensors_in(args, kwargs)):
            return False
        recorder = self._recorder
        targets = (x for x in written_by(func, args, kwargs) if not recorder.is_recorded(x))
        return any(not recorder.fresh.take(x) for x in targets)

    def check_given(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raises: CaptureError for a write to an untraced tensor, whose views would not see it"""
        for target in written_by(func, args, kwargs):
            if isinstance(target, TracedTensor) or self._recorder.is_owned(target):
                continue
            if not self._recorder.fresh.take(target):
                made = "forward has not made"
                remedy = "create it in forward, for example with torch.zeros, or use torch.stack"
                if self._recorder.is_in_update:
                    made = "this step of the optimizer has not made"
                    remedy = "keep it in self.state[parameter]"
                raise self._recorder.refusal(
                    f"{func} writes a traced value into a tensor that {made}: {remedy}"
                )

    def _written_traced(self, func: Any, args: Any, kwargs: Any) -> list[TracedTensor]:
        return [t for t in written_by(func, args, kwargs) if isinstance(t, TracedTensor)]

    def _is_counter(self, target: TracedTensor) -> bool:
        """True for a view of an integer or boolean buffer that forward may write."""
        is_counter = target.memory.stored.startswith(("integer", "boolean"))
        return is_counter and self._recorder.may_read_in_forward

    def _check(self, func: Any, target: TracedTensor) -> None:
        refusal, stored = self._recorder.refusal, target.memory.stored
        if stored and not stored.startswith("buffer") and not self._is_counter(target):
            remedy = "write x = x * 2 instead of x *= 2, or into x = x.clone()"
            if target.memory.stored.startswith("parameter"):
                remedy = (
                    "write all of it before forward uses it, as with p.mul_(m).add_(q, alpha=n), "
                    "or after optimizer.step()"
                )
            if target.memory.stored.startswith("boolean"):
                remedy = (
                    "set it in the loop, between two steps, for example with buffer.fill_(True)"
                )
            elif target.memory.stored.startswith("integer"):
                remedy = "write all of it, as in buffer.fill_(1), or make it a buffer of floats"
            elif self._recorder.has_loss:
                remedy = "give the Session the optimizer that updates it"
            raise refusal(
                f"{func} writes into {target.memory.stored}, which the step may only read: {remedy}"
            )
        if all(other.geometry == target.geometry for other in target.memory.tensors):
            return
        view = target
        while (of := view.view_of) is not None:
            if of.call not in WRITE_BACK:
                raise refusal(
                    f"{func} writes into a view made by {of.call}, which is not supported: use an "
                    "out-of-place operator such as torch.where or torch.cat"
                )
            view = of.base

    def _out_of_place(self, func: Any, args: Any) -> tuple[Any, tuple[Any, ...]]:
        found = out_of_place(func, args)
        if found is None:
            raise self._recorder.refusal(
                f"{func} works in place and has no out-of-place form: use another operator"
            )
        return found

    def _replace_value(self, target: TracedTensor, new: TracedTensor) -> None:
        """Give all aliases of the target the new value, in the target's storage."""
        others = list(target.memory.tensors)
        if all(other.geometry == target.geometry for other in others):
            for other in others:  # nothing else refers to their base
                other.held, other.view_of = target.held, None
            target.value = new.value
            return
        view, value = target, new
        while (of := view.view_of) is not None:
            call, arguments = WRITE_BACK[of.call](of, value)
            value = self._recorder.record(str(call), call, arguments, {})
            view = of.base
        view.value = value.value
        made = {id(view.held)}
        for other in others:
            if not other.is_freed:
                self._recompute_view(other, made)
        for other in others:
            if other.is_freed and other.view_of is not None and id(other.held) not in made:
                other.held = LateValue(partial(self._view, other.view_of))

    def _recompute_view(self, tensor: TracedTensor, made: set[int]) -> None:
        """Recompute a view from its base's new value."""
        of = tensor.view_of
        if of is None or id(tensor.held) in made:
            return
        made.add(id(tensor.held))
        self._recompute_view(of.base, made)
        tensor.value = self._view(of)

    def _view(self, of: ViewOf) -> Ref:
        """Record a view of its base's current value."""
        call = aten.reshape.default if of.call is aten.view.default else of.call
        name = str(aten.as_strided.default if call is strided else call)
        found = self._recorder.record(name, call, (of.base, *of.arguments), of.keywords)
        value: Ref = (found[of.result] if isinstance(found, tuple | list) else found).value
        return value


def out_of_place(func: Any, args: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the out-of-place form of an in-place operator, and its arguments; None without
    one.
    """
    if func in _SPECIAL:
        call, arguments = _SPECIAL[func]
        return call, arguments(*args)
    found = _plain_form(func)
    return None if found is None or found is func else (found, args)


@cache
def _plain_form(func: Any) -> Any:
    """Return the out-of-place overload of an operator; None if there is none."""
    packet = getattr(aten, func._schema.name.removeprefix("aten::").removesuffix("_"), None)
    return packet and getattr(packet, func._overloadname, None)


@cache
def without_out(func: Any) -> Any:
    """Return the overload that takes the same arguments without `out`, and may take a type as
    `eye` does; None if there is none.
    """
    if torch.Tag.nondeterministic_seeded in func.tags:
        return None
    packet, given = func._overloadpacket, [a for a in func._schema.arguments if not a.is_out]
    kinds = [(a.name, str(a.type)) for a in given]
    for name in packet.overloads():
        call = getattr(packet, name)
        other = [a for a in call._schema.arguments if (a.name, str(a.type)) not in kinds]
        is_of_kind = all(a.name in _OPTIONS for a in other) and not call._schema.is_mutable
        if is_of_kind and len(call._schema.arguments) == len(kinds) + len(other):
            return call
    return None


def base_of(tensor: TracedTensor) -> TracedTensor:
    """Return the base of a view, or the tensor itself."""
    while tensor.view_of is not None:
        tensor = tensor.view_of.base
    return tensor


def strided(x: torch.Tensor, sizes: Any, strides: Any, offset: int) -> torch.Tensor:
    """as_strided of a contiguous tensor."""
    return call_for_user(torch.as_strided, (x.contiguous(), sizes, strides, offset))


Call = tuple[Any, tuple[Any, ...]]  # an operator and its arguments


def _scatter_by(scatter: Any) -> Callable[[ViewOf, TracedTensor], Call]:
    """Return the scatter operator by the view's arguments."""
    return lambda of, new: (scatter, (of.base, new, *of.arguments))


def _undo_reshape(of: ViewOf, new: TracedTensor) -> Call:
    return aten.reshape.default, (new, list(of.base.like.shape))


def _undo_transpose(of: ViewOf, new: TracedTensor) -> Call:
    return of.call, (new, *of.arguments)


def _undo_permute(of: ViewOf, new: TracedTensor) -> Call:
    dims = [d % len(of.arguments[0]) for d in of.arguments[0]]
    return of.call, (new, [dims.index(d) for d in range(len(dims))])


def _write_part(of: ViewOf, new: TracedTensor) -> Call:
    """Write one part of a split axis."""
    sizes, dim = of.arguments[0], of.arguments[1] if len(of.arguments) > 1 else 0
    start = sizes * of.result if isinstance(sizes, int) else sum(sizes[: of.result])
    end = start + new.like.shape[dim]
    return aten.slice_scatter.default, (of.base, new, dim, start, end)


def _write_unbound(of: ViewOf, new: TracedTensor) -> Call:
    """Write one of the tensors that an axis was unbound into."""
    dim = of.arguments[0] if of.arguments else 0
    return aten.select_scatter.default, (of.base, new, dim, of.result)


#: For each view operator, the one that returns the base with the view's new value.
WRITE_BACK: Mapping[Any, Callable[[ViewOf, TracedTensor], Call]] = {
    aten.view.default: _undo_reshape,
    aten.unsqueeze.default: _undo_reshape,
    aten.squeeze.default: _undo_reshape,
    aten.squeeze.dim: _undo_reshape,
    aten.squeeze.dims: _undo_reshape,
    aten.t.default: _undo_transpose,
    aten.transpose.int: _undo_transpose,
    aten.permute.default: _undo_permute,
    aten.slice.Tensor: _scatter_by(aten.slice_scatter.default),
    aten.select.int: _scatter_by(aten.select_scatter.default),
    aten.diagonal.default: _scatter_by(aten.diagonal_scatter.default),
    aten.split.Tensor: _write_part,
    aten.split_with_sizes.default: _write_part,
    aten.unbind.int: _write_unbound,
    strided: _scatter_by(aten.as_strided_scatter.default),
}
