"""Order of a RandomSampler's pass, drawn in blocks: a pass may have 10^10 samples."""

from collections.abc import Sequence
from math import ceil
from typing import Any, overload

import numpy as np
import torch
from torch.utils.data import RandomSampler

BLOCK = 2**16  # samples, or one permutation of the data set if that is longer
_MOST_BLOCKS = 2  # in memory, since a batch may span two


class RandomOrder(Sequence[int]):
    """Indices of one pass by a seed, the same as the sampler's own iterator gives.

    A later block is reached by drawing all before it, an earlier one from the saved state of the
    generator.

    Source: torch.utils.data.sampler, RandomSampler.__iter__: indices with replacement are drawn 32
        at a time, which on the CPU are the numbers of one longer draw
    """

    def __init__(self, sampler: RandomSampler, seed: int) -> None:
        self._replacement, self._length = sampler.replacement, len(sampler)
        self._samples = len(sampler.data_source)
        self._repeats = min(max(1, BLOCK // self._samples), ceil(self._length / self._samples))
        self._block = BLOCK if self._replacement else self._repeats * self._samples
        self._generator = torch.Generator().manual_seed(seed)
        self._states = [self._generator.get_state()]  # at the starts of blocks
        self._drawn: dict[int, np.ndarray[Any, Any]] = {}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: int | slice) -> int | list[int]:
        places = range(self._length)[position]
        if isinstance(places, int):
            return int(self._block_of(places // self._block)[places % self._block])
        found: list[int] = []
        while len(found) < len(places):
            number, start = divmod(places.start + len(found), self._block)
            found += self._block_of(number)[start : start + len(places) - len(found)].tolist()
        return found

    def _block_of(self, number: int) -> np.ndarray[Any, Any]:
        if number not in self._drawn:
            for reached in range(len(self._states) - 1, number):
                self._draw(reached)
            while len(self._drawn) >= _MOST_BLOCKS:
                del self._drawn[next(iter(self._drawn))]
            self._drawn[number] = self._draw(number).numpy()
        return self._drawn[number]

    def _draw(self, number: int) -> torch.Tensor:
        generator, count = self._generator, self._samples
        generator.set_state(self._states[number])
        if self._replacement:
            drawn = torch.randint(count, (self._block,), generator=generator)
        else:
            permutations = [
                torch.randperm(count, generator=generator) for _ in range(self._repeats)
            ]
            drawn = torch.cat(permutations)
        if number + 1 == len(self._states):
            self._states.append(generator.get_state())
        return drawn
