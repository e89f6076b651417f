"""Random numbers that forward draws, repeated in a later step without running forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from csrun.pytorch.errors import CaptureError, call_for_user
from csrun.pytorch.record.arguments import map_arguments, tensors_in
from csrun.pytorch.record.geometry import Geometry
from csrun.pytorch.record.plain_tensors import PlainTensors
from csrun.pytorch.record.recording import LeafSource, Ref
from csrun.pytorch.record.scopes import Scopes
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.record.unsupported import COMPUTES_WITH_DRAWS, DRAWS

_DRAWN = "random numbers are drawn in the step"
_DRAWN_INTO = ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "random")
_DRAWN_ANEW = ("bernoulli", "binomial", "multinomial", "normal", "poisson")
_DRAWN_LIKE = ("rand_like", "randint_like", "randn_like")
#: Operators that only draw: into their first operand, like it, or by their operands.
DRAWING_OPERATORS = frozenset(
    getattr(packet, overload)
    for name in (*(f"{n}_" for n in (*_DRAWN_INTO, "uniform")), *_DRAWN_ANEW, *_DRAWN_LIKE)
    for packet in [getattr(torch.ops.aten, name)]
    for overload in packet.overloads()
    if "out" not in overload and DRAWS in getattr(packet, overload).tags
)


class _DrawingRecorder(Protocol):
    """The recorder, as used here."""

    may_draw: bool
    takes_arguments: bool
    scopes: Scopes
    plain: PlainTensors
    reader: Callable[[TracedTensor], torch.Tensor]

    def traced(self, tensor: torch.Tensor) -> TracedTensor: ...

    def add_plain(self, numbers: torch.Tensor, source: LeafSource) -> TracedTensor: ...

    def note_varying(self, what: str) -> None: ...

    def refusal(self, what: str) -> CaptureError: ...


@dataclass(eq=False)
class Draw:
    """A call of forward that only draws. value: the leaf of its numbers, if it is one.

    It only uses the geometry of tensors among its arguments.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    value: Ref | None = None

    def __str__(self) -> str:
        """Return a key that distinguishes it from other draws."""
        args, kwargs = map_arguments(_geometry_of, self.args, self.kwargs)
        return f"{self.func} {args} {kwargs} {self.value}"

    def again(self) -> torch.Tensor:
        """Draw numbers for another step."""
        first, *others = self.args
        if self.func._schema.is_mutable:
            first = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype)
        with unrecorded(), torch.no_grad():
            numbers: torch.Tensor = call_for_user(self.func, (first, *others), self.kwargs)
        return numbers


def _generator_state() -> bytes:
    """Return the state of PyTorch's generator, outside of the modes of a recording."""
    with torch._C.DisableTorchFunction(), unrecorded():
        state: bytes = torch.default_generator.get_state().numpy().tobytes()
    return state


def _geometry_of(argument: Any) -> Any:
    return Geometry.of(argument) if isinstance(argument, torch.Tensor) else argument


class ForwardDraws:
    """Random numbers that a step draws.

    made: forward's draws, in order, that can be repeated.
    count: number of all draws.
    """

    def __init__(self, recorder: _DrawingRecorder) -> None:
        self._recorder = recorder
        self.made: list[Draw] = []
        self.count = 0
        self._state: bytes | None = None  # state of PyTorch's generator after forward

    def begin(self) -> None:
        """Begin a call of forward."""
        self._state = _generator_state()

    def end(self) -> None:
        """End a call of forward."""
        state, self._state = self._state, None
        if state is not None and _generator_state() != state:
            self._recorder.note_varying("forward sets the state of PyTorch's random numbers")

    def plain(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Draw random numbers with PyTorch, for an operator on plain tensors.

        A step without forward cannot draw them, since forward may use plain numbers at once.

        Raises: CaptureError if steps are not recorded for a loop
        """
        recorder = self._recorder
        self.count += 1
        if not recorder.may_draw:
            raise recorder.refusal(COMPUTES_WITH_DRAWS.format(func))
        found = call_for_user(func, args, dict(kwargs))
        if recorder.scopes.is_in_forward or not recorder.takes_arguments:
            recorder.note_varying(_DRAWN)
        recorder.plain.note_varying(found)
        return found

    def traced(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TracedTensor:
        """Draw random numbers with PyTorch, for an operator on traced tensors.

        Only the geometry of the operand that they are written into, or are to be like, is used.
        """
        recorder = self._recorder
        self.count += 1
        like = args[0] if func._schema.is_mutable or "_like" in func.name() else None
        given, options = map_arguments(lambda a: self._operand(a, like), args, kwargs)
        with unrecorded(), torch.no_grad():
            numbers, made = self._draw(func, given, options)
        drawn = recorder.add_plain(numbers, LeafSource.SCRIPT)
        tensors = tensors_in(args, kwargs)
        if made is not None and all(tensor is like for tensor in tensors):
            made.value = drawn.value
        else:
            recorder.note_varying(_DRAWN)
        return drawn

    def _operand(self, argument: Any, like: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return argument
        traced = self._recorder.traced(argument)
        if argument is not like:
            return self._recorder.reader(traced)
        with unrecorded():
            return torch.empty_strided(traced.shape, traced.stride(), dtype=traced.dtype)

    def _draw(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, Draw | None]:
        """Draw numbers; return them, with the draw if a later step can repeat it without forward.

        That is impossible outside of forward, with a generator of the script, or if forward has set
        PyTorch's generator state.
        """
        is_known = self._state is not None and kwargs.get("generator") is None
        is_known = is_known and _generator_state() == self._state
        numbers = call_for_user(func, args, dict(kwargs))
        if not is_known:
            return numbers, None
        self._state = _generator_state()
        made = Draw(func, args, kwargs)
        self.made.append(made)
        return numbers, made
