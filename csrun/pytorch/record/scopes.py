"""Layer and source line of recorded operators, in forward and backward."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, Self

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from csrun.pytorch.errors import CaptureError, user_line
from csrun.pytorch.record.recording import RecordedOperator


class Scopes:
    """Names of the modules being run, h.3.attn as h/3/attn; modules outside the model have none.

    An operator of the backward pass has the scope and line of the forward operator that created its
    autograd node: nodes are numbered in the order in which forward creates them.
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self._names = {id(m): name.replace(".", "/") for name, m in modules.items()}
        self._stack: list[str] = []
        self._nodes: dict[int, tuple[str, str]] = {}
        self._fixed_place: tuple[str, str] | None = None

    def name_modules(self, names: Mapping[torch.nn.Module, str]) -> None:
        """Name modules that are not in the model."""
        self._names |= {id(module): name for module, name in names.items()}

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
        if self._stack:  # not within a call in which the recording began
            self._stack.pop()

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Enter the model itself, also if the recording began within its call."""
        is_entered = self.is_in_forward
        if not is_entered:
            self._stack.append("")
        try:
            yield
        finally:
            if not is_entered:
                self._stack.clear()

    @property
    def name(self) -> str:
        """Scope of the current operator."""
        return self._find_place()[0]

    @property
    def line(self) -> str:
        """User's line of the current operator."""
        return self._find_place()[1]

    @property
    def is_backward(self) -> bool:
        """True if autograd is computing a gradient."""
        return torch._C._current_autograd_node() is not None

    def _find_place(self) -> tuple[str, str]:
        if self._fixed_place is not None:
            return self._fixed_place
        node = torch._C._current_autograd_node()
        if node is not None and (found := self._nodes.get(node._sequence_nr())):
            return found
        place = self._innermost, user_line()
        if node is None:  # a node belongs to the first operator after its creation
            self._nodes.setdefault(torch.autograd._get_sequence_nr() - 1, place)
        return place

    @property
    def _innermost(self) -> str:
        """Name of the module being run, empty outside of forward."""
        return self._stack[-1] if self._stack else ""

    def set_place(self, place: tuple[str, str] | None) -> tuple[str, str] | None:
        """Set scope and line for the next operators; return the previous ones."""
        before, self._fixed_place = self._fixed_place, place
        return before

    @property
    def here(self) -> tuple[str, str]:
        """Scope and line of the current operator."""
        return self._find_place()

    def repeats(self, operator: RecordedOperator) -> bool:
        """True if an operator of another recording is at the current scope; if so, use its line.

        Two lines of one layer may call the same operator: either is suitable for a message.
        """
        node = torch._C._current_autograd_node()
        if operator.is_backward != (node is not None):
            return False
        if self._fixed_place is not None:
            return operator.scope == self._fixed_place[0]
        if node is not None:
            found = self._nodes.get(node._sequence_nr())
            return operator.scope == (found[0] if found else self._innermost)
        if operator.scope != self._innermost:
            return False
        number = torch.autograd._get_sequence_nr() - 1
        self._nodes.setdefault(number, (operator.scope, operator.line))
        return True

    @property
    def module(self) -> str | None:
        """Name of the module being run, None outside of all."""
        return self._stack[-1] if self._stack else None

    @contextmanager
    def within(self, module: str | None) -> Iterator[None]:
        """Context manager in a module, or outside of all."""
        before, self._stack = self._stack, [] if module is None else [module]
        try:
            yield
        finally:
            self._stack = before

    @property
    def is_in_forward(self) -> bool:
        """True if a module is being run."""
        return bool(self._stack)

    def refuse_in_forward(self) -> NoReturn:
        """Raises: CaptureError"""
        raise CaptureError(
            f"{user_line()}: forward reads the value of a traced tensor (if, while, .item()), "
            "but the graph is compiled once: use torch.where, or read values outside forward"
        )
