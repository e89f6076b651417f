"""What of PyTorch's is on or off while a step is recorded."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_ONEDNN = torch._C._get_mkldnn_enabled()  # whether the user has it


@contextmanager
def onednn(is_used: bool) -> Iterator[None]:
    """With or without it: an LSTM is one operator of its own, which PyTorch else takes apart."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(is_used and _ONEDNN)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def outside() -> Iterator[None]:
    """Where operators are not recorded."""
    with _disable_current_modes():
        yield


@contextmanager
def inference_as_no_grad() -> Iterator[None]:
    """`torch.inference_mode()` is no more than `no_grad()`: within it PyTorch takes no operator
    apart, so that none could be recorded.
    """
    kind = torch.inference_mode
    own = kind.__enter__

    def enter(mode: Any) -> None:
        mode._inference_mode_context = torch.set_grad_enabled(not mode.mode)

    kind.__enter__ = enter
    try:
        yield
    finally:
        kind.__enter__ = own
