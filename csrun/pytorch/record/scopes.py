"""Which module computes what is recorded, forward and on the way back, and in which line."""

from typing import Any, Self

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from csrun.pytorch.errors import CaptureError, user_line


class Scopes:
    """Modules of the model by their names, h.3.attn as h/3/attn; those outside it have none.

    An operator of the way back has the scope and the line of the forward operator whose node of
    autograd calls it: nodes are numbered in the order in which forward makes them.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._names = {id(m): name.replace(".", "/") for name, m in model.named_modules()}
        self._stack: list[str] = []
        self._nodes: dict[int, tuple[str, str]] = {}
        self._whole: tuple[str, str] | None = None

    def __enter__(self) -> Self:
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        outer = self._stack[-1] if self._stack else ""
        self._stack.append(self._names.get(id(module), outer))

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()

    @property
    def name(self) -> str:
        """The scope of the operator that is being recorded."""
        return self._place()[0]

    @property
    def line(self) -> str:
        """The user's line of it."""
        return self._place()[1]

    @property
    def is_backward(self) -> bool:
        """Whether autograd computes a gradient."""
        return torch._C._current_autograd_node() is not None

    def _place(self) -> tuple[str, str]:
        if self._whole is not None:
            return self._whole
        node = torch._C._current_autograd_node()
        if node is not None and (found := self._nodes.get(node._sequence_nr())):
            return found
        place = (self._stack[-1] if self._stack else "", user_line())
        if node is None:  # the first operator after a node was made is the one that it is of
            self._nodes.setdefault(torch.autograd._get_sequence_nr() - 1, place)
        return place

    def of_whole(self, place: tuple[str, str] | None) -> tuple[str, str] | None:
        """Give what is recorded next the place of another operator; gives back the one before."""
        before, self._whole = self._whole, place
        return before

    @property
    def here(self) -> tuple[str, str]:
        """Scope and line."""
        return self._place()

    def refuse_counter_in_forward(self, name: str) -> None:
        """Raises: CaptureError where a module of the loop is being computed."""
        if self._stack:
            raise CaptureError(
                f"{user_line()}: forward reads the value of the counter {name}, which csrun "
                "updates only after the run: give a BatchNorm of momentum=None a momentum, as 0.1"
            )

    def refuse_in_forward(self) -> None:
        """Raises: CaptureError where a module of the loop is being computed."""
        if self._stack:
            raise CaptureError(
                f"{user_line()}: forward reads the value of a traced tensor (if, while, .item()), "
                "but the graph is compiled once: use torch.where, or read values outside forward"
            )
