"""Flat files of token ids: a text as numbers, one after the other, as nanoGPT writes it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from csrun.data.errors import DataError, require
from csrun.data.formats.base import INTEGERS, Array, kind_of


@dataclass(frozen=True)
class Tokens:
    """Windows of a file of token ids for next-token prediction: (inputs, targets).

    Sample i are the tokens from i * stride on, and the targets are one token ahead. stride None is
    `length`: a token is an input once. Both arrays are views of one memory map: nothing is copied.
    """

    length: int
    dtype: str = "uint16"
    stride: int | None = None

    def __post_init__(self) -> None:
        require(self.length > 0, "Tokens", "length must be positive", self.length)
        require(self.step > 0, "Tokens", "stride must be positive", self.stride)
        known = kind_of(self.dtype) in INTEGERS
        require(known, "Tokens", "dtype must be of integers", self.dtype)

    @property
    def step(self) -> int:
        """How many tokens further the next sample begins."""
        return self.length if self.stride is None else self.stride

    def arrays(self, path: Path) -> tuple[Array, ...]:
        """Inputs and targets.

        Shapes: both [samples, length], samples = (tokens - length - 1) // stride + 1
        Raises: DataError for a file that is missing, too short, or cut within a token
        """
        tokens = self._mapped(path)
        windows = np.lib.stride_tricks.sliding_window_view(tokens, self.length + 1)[:: self.step]
        return windows[:, :-1], windows[:, 1:]

    def _mapped(self, path: Path) -> Array:
        try:
            size_bytes = path.stat().st_size
            item_bytes = np.dtype(self.dtype).itemsize
            rule = f"tokens of {self.dtype} take a multiple of {item_bytes} bytes"
            require(size_bytes % item_bytes == 0, str(path), rule, size_bytes)
            rule = f"a sample of length {self.length} needs {self.length + 1} tokens"
            require(
                size_bytes // item_bytes > self.length, str(path), rule, size_bytes // item_bytes
            )
            return np.memmap(path, self.dtype, "r")
        except OSError as error:
            raise DataError(f"{path}: cannot be opened: {error.strerror}") from error
