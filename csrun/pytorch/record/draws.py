"""Random numbers that forward draws, and a later step without running forward."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.torch_modes import unrecorded


@dataclass(eq=False)
class Draw:
    """A call of forward that does nothing but draw. value: the leaf of its numbers, if it is one.

    Of tensors among its arguments it only uses the geometry.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    value: Ref | None = None

    def again(self) -> torch.Tensor:
        """Draw numbers for another step."""
        first, *others = self.args
        if self.func._schema.is_mutable:
            first = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype)
        with unrecorded(), torch.no_grad():
            numbers: torch.Tensor = call_for_user(self.func, (first, *others), self.kwargs)
        return numbers


class ForwardDraws:
    """Draws of a step's forward, in order. made: those that may be made again."""

    def __init__(self) -> None:
        self.made: list[Draw] = []
        self._state: torch.Tensor | None = None  # of PyTorch's generator, as forward has left it
        self._plain: dict[int, tuple[torch.Tensor, Draw]] = {}  # by the id of the numbers

    def begin(self) -> None:
        """Begin a call of forward."""
        self._state = torch.get_rng_state()

    def end(self) -> None:
        """End a call of forward."""
        self._state = None

    def draw(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, Draw | None]:
        """Draw numbers; return them, with the draw if a later step can make it without forward.

        It cannot outside of forward, with a generator of the script's own, and where forward itself
        has set the state of PyTorch's.
        """
        is_known = self._state is not None and kwargs.get("generator") is None
        is_known = is_known and torch.equal(self._state, torch.get_rng_state())
        numbers = call_for_user(func, args, dict(kwargs))
        if not is_known:
            return numbers, None
        self._state = torch.get_rng_state()
        made = Draw(func, args, kwargs)
        self.made.append(made)
        return numbers, made

    def keep(self, numbers: torch.Tensor, of: Draw) -> None:
        """Keep a plain tensor of numbers, which may become a leaf."""
        self._plain[id(numbers)] = numbers, of

    def is_drawn(self, tensor: torch.Tensor) -> bool:
        """True if a plain tensor has numbers of a draw."""
        return id(tensor) in self._plain

    def note_leaf(self, tensor: torch.Tensor, value: Ref) -> None:
        """Note that a plain tensor has become a leaf."""
        if self.is_drawn(tensor):
            self._plain[id(tensor)][1].value = value
