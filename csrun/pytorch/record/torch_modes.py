"""Settings and modes of PyTorch and of Python's garbage collector while a step is recorded."""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_ONEDNN = torch._C._get_mkldnn_enabled()  # the user's setting
_KEYS = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


@contextmanager
def onednn(is_used: bool) -> Iterator[None]:
    """Enable or disable oneDNN, in which an LSTM is one operator that is not decomposed."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(is_used and _ONEDNN)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Suspend recording."""
    with _disable_current_modes():
        yield


@contextmanager
def above_autograd() -> Iterator[None]:
    """Make autograd see operators even if one is dispatched below it."""
    with torch._C._ForceDispatchKeyGuard(*_KEYS):
        yield


@contextmanager
def inference_as_no_grad() -> Iterator[None]:
    """Make `torch.inference_mode()` act as `no_grad()`.

    In inference mode PyTorch does not decompose operators, so they could not be recorded.
    """
    kind = torch.inference_mode
    original = kind.__enter__

    def enter(mode: Any) -> None:
        mode._inference_mode_context = torch.set_grad_enabled(not mode.mode)

    kind.__enter__ = enter
    try:
        yield
    finally:
        kind.__enter__ = original


@contextmanager
def compiled_as_eager() -> Iterator[None]:
    """Run functions and modules of `torch.compile` as they are written, so that their operators are
    recorded.
    """
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        # the hooks are csrun's, and a module that is not compiled calls them once
        warnings.filterwarnings(
            "ignore", r"Using `torch.compile\(module\)` when there are global hooks"
        )
        yield


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause Python's cyclic garbage collector.

    The collector would repeatedly scan the many objects of a step's graph.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
