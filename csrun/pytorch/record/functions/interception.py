"""Interception of PyTorch functions above autograd: composite operators and backward()."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.fx
from torch.fx import Proxy
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.half_types import without_halves
from csrun.pytorch.record.functions.composite_ops import COMPOSITES, record_composite
from csrun.pytorch.record.reuse.autograd_graph import WATCHING
from csrun.pytorch.record.traced import TracedTensor, require_no_options

if TYPE_CHECKING:
    from csrun.pytorch.record.recorder import StepRecorder

#: Methods that read a tensor's memory without an operator, by name, since they may be patched.
_OF_MEMORY = {"tolist", "numpy", "__array__", "__repr__", "__format__", "__deepcopy__"}
_SIZES = {
    *(torch.Tensor.size, torch.Tensor.numel, torch.Tensor.nelement, torch.Tensor.__len__),
    torch.Tensor.shape.__get__,
    torch.numel,
}


class _IsTraced(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, TracedTensor | Proxy)


class GraphValue(Proxy, metaclass=_IsTraced):
    """`torch.fx.Proxy` while a step is recorded; traced tensors are instances of it.

    transformers tests for it before it reads the values of a mask, and may omit the mask.
    `torch.jit.is_tracing` stays False: if it were True, sizes could be tensors.
    """


class FunctionCapture(TorchFunctionMode):
    """Function mode that reports backward() to the recorder and records composite operators.

    A mode sees the loop's calls, but not those within PyTorch's functions, such as dropout in
    multi_head_attention_forward. For these, names in torch.nn.functional are patched while a step
    is recorded.
    """

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __enter__(self) -> Self:
        for name, func in _BY_NAME.items():
            setattr(functional, name, _patched(func))
        torch._functorch.utils.unwrap_dead_wrappers = _function_arguments
        _open.append(self)
        self._proxy, torch.fx.Proxy = torch.fx.Proxy, GraphValue
        self._reduce = torch.Tensor.__reduce_ex__
        torch.Tensor.__reduce_ex__ = self._reduced(self._reduce)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.fx.Proxy, torch.Tensor.__reduce_ex__ = self._proxy, self._reduce
        _open.remove(self)
        torch._functorch.utils.unwrap_dead_wrappers = _unwrap_dead_wrappers
        for name, func in _BY_NAME.items():
            setattr(functional, name, func)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a call of the loop."""
        kwargs = kwargs or {}
        if self._recorder.is_finished:
            return call_for_user(func, args, kwargs)
        func, args, kwargs = without_halves(func, args, kwargs, self._recorder.float_type)
        if func is torch.Tensor.backward and not self._recorder.backward.is_in_progress:
            self._run_backward(args, kwargs)
            return None
        if func in _SIZES and self._recorder.scopes.is_in_forward:
            self._recorder.host.note_size_read(args[0])
        if func in WATCHING:
            self._recorder.backward.is_watched = True
        name = getattr(func, "__name__", "")
        if name in _OF_MEMORY and self._recorder.fresh.is_taken(args[0]):
            return getattr(self._recorder.fresh.resolve(args[0]), name)(*args[1:], **kwargs)
        args, kwargs = self._recorder.packed.with_valid_rows(func, args, kwargs)
        return self.composite(func, args, kwargs)

    def _reduced(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """Return a pickling method for `torch.save`, which no mode sees. own: that of tensors."""

        @wraps(own)
        def reduce(tensor: torch.Tensor, protocol: Any) -> Any:
            recorder = self._recorder
            if not recorder.is_finished and recorder.fresh.is_taken(tensor):
                tensor = recorder.fresh.resolve(tensor).numbers()
            return own(tensor, protocol)

        return reduce

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of an `autograd.Function`, which no mode sees."""
        return self._recorder.packed.for_custom_function(args)

    @property
    def is_over(self) -> bool:
        """True if the step is recorded."""
        return self._recorder.is_finished

    def composite(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record a composite operator; call any other function."""
        found = record_composite(self._recorder, func, args, kwargs)
        return call_for_user(func, args, kwargs) if found is NotImplemented else found

    def _run_backward(self, args: Any, kwargs: Any) -> None:
        def compute() -> None:
            with torch.autograd.set_detect_anomaly(False):  # anomaly detection reads values
                call_for_user(torch.Tensor.backward, args, kwargs)

        backward = self._recorder.backward
        backward.start(args[0])
        if not self._recorder.has_updates:
            require_no_options(*args[1:], **kwargs)
        given = (*args[1:], *kwargs.values())
        has_options = any(x is not None and x is not False for x in given)
        if backward.is_watched or has_options:
            compute()
        else:
            passes = self._recorder.repeated.known.backwards
            backward.known = passes.run(self._recorder, args[0], compute)
        backward.finish()


_BY_NAME = {func.__name__: func for func in COMPOSITES}
_open: list[FunctionCapture] = []  # the innermost last
_unwrap_dead_wrappers = torch._functorch.utils.unwrap_dead_wrappers


def _function_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace `unwrap_dead_wrappers`, which `autograd.Function.apply` calls on its arguments."""
    args = _unwrap_dead_wrappers(args)
    capture = _open[-1] if _open else None
    return args if capture is None or capture.is_over else capture.arguments(args)


@cache
def _patched(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that records in the current step."""

    @wraps(func)
    def called(*args: Any, **kwargs: Any) -> Any:
        capture = _open[-1] if _open else None
        if capture is None or capture.is_over or capture in _get_current_function_mode_stack():
            return call_for_user(func, args, kwargs)  # which calls this mode
        return capture.composite(func, args, kwargs)

    return called
