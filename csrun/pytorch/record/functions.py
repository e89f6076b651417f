"""Functions that are taken above autograd: some whole, one for what it says of the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.composite_ops import TAKEN, take

if TYPE_CHECKING:
    from csrun.pytorch.record.recorder import Recorder


class Functions(TorchFunctionMode):
    """Tells the recorder of backward(), and takes functions whole.

    A mode sees what the loop calls, not what PyTorch's own functions call in turn, as
    multi_head_attention_forward does with dropout: for these the names in torch.nn.functional
    stand for others while a step is recorded.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._names = {func.__name__: func for func in TAKEN}

    def __enter__(self) -> Self:
        for name, func in self._names.items():
            setattr(functional, name, self._taken(func))
        # unless it is traced, transformers reads a mask's numbers, and may leave the mask out
        self._is_tracing, torch.jit.is_tracing = torch.jit.is_tracing, lambda: True
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.jit.is_tracing = self._is_tracing
        for name, func in self._names.items():
            setattr(functional, name, func)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One of PyTorch's functions is called by the loop."""
        kwargs = kwargs or {}
        if func is torch.Tensor.backward:
            self._recorder.backward.begins(args[0])
            with torch.autograd.set_detect_anomaly(False):  # which looks at numbers
                call_for_user(func, args, kwargs)
            self._recorder.backward.ends()
            return None
        taken = take(self._recorder, func, args, kwargs)
        return call_for_user(func, args, kwargs) if taken is NotImplemented else taken

    def _taken(self, func: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(func)
        def called(*args: Any, **kwargs: Any) -> Any:
            if self in _get_current_function_mode_stack():
                return call_for_user(func, args, kwargs)  # which asks the modes, ours among them
            taken = take(self._recorder, func, args, kwargs)
            return call_for_user(func, args, kwargs) if taken is NotImplemented else taken

        return called
