"""Random numbers of a Keras step, drawn by csrun: keras.random, and the layers that use it."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from csrun.base.errors import UsageError
from csrun.keras.torch_backend import keras
from csrun.pytorch.errors import user_line
from csrun.pytorch.record.functions.composite_ops import draw_uniform
from csrun.pytorch.record.torch_modes import unrecorded

_REFUSED = ("beta", "binomial", "gamma", "shuffle")


@contextmanager
def recorded_draws(sample: torch.Tensor) -> Iterator[None]:
    """Context manager in which keras.random draws csrun's numbers, new ones in each step.

    Numbers whose first axis is a multiple of the batch size are those of the samples: they do not
    depend on how the batch is split. With an integer as `seed` they are Keras's, the same in each
    step.

    sample: an array of the batch, whose first axis is that of the samples.

    Raises: UsageError for another distribution
    """
    from keras.src.backend.torch import random

    draws = _KerasDraws(sample)
    replaced: dict[str, Callable[..., Any]] = {
        "uniform": draws.uniform,
        "normal": draws.normal,
        "truncated_normal": draws.truncated_normal,
        "randint": draws.randint,
        "categorical": draws.categorical,
        **{name: partial(_refuse, name) for name in _REFUSED},
    }
    with ExitStack() as stack:
        for name, function in replaced.items():
            own = getattr(random, name)
            stack.enter_context(patch.object(random, name, _unless_constant(own, function)))
        yield


def _unless_constant(own: Callable[..., Any], drawn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that draws Keras's own numbers where they are constant."""
    from keras.src.backend.torch.core import get_device

    def draw(*given: Any, seed: Any = None, **options: Any) -> Any:
        if isinstance(seed, int) or get_device() == "meta":  # meta: only shapes are inferred
            with unrecorded():
                return own(*given, seed=seed, **options)
        return drawn(*given, **options)

    return draw


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    raise UsageError(
        f"{user_line()}: keras.random.{name} is not supported in a step: draw uniform, normal, "
        "truncated_normal, randint or categorical numbers, or have the input_fn give them as a "
        "feature"
    )


class _KerasDraws:
    """Draws of a step, from uniform numbers in (0, 1)."""

    def __init__(self, sample: Any) -> None:
        self._sample = sample

    def uniform(
        self, shape: Sequence[int], minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None
    ) -> Any:
        """Numbers between minval and maxval."""
        return _cast((maxval - minval) * self._numbers(shape) + minval, dtype)

    def normal(
        self, shape: Sequence[int], mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None
    ) -> Any:
        """Normal numbers, by the inverse of their distribution."""
        return _cast(self._normal(shape, 1.0) * stddev + mean, dtype)

    def truncated_normal(
        self, shape: Sequence[int], mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None
    ) -> Any:
        """Normal numbers within two standard deviations."""
        return _cast(self._normal(shape, math.erf(math.sqrt(2))) * stddev + mean, dtype)

    def randint(self, shape: Sequence[int], minval: Any, maxval: Any, dtype: Any = "int32") -> Any:
        """Integers from minval to maxval - 1."""
        count = maxval - minval
        found = torch.clamp(torch.floor(self._numbers(shape) * count), 0, count - 1)
        return _cast(found + minval, dtype)

    def categorical(self, logits: Any, num_samples: int, dtype: Any = "int32") -> Any:
        """Classes by their logits. Shapes: [B, C] -> [B, num_samples]

        Source: the Gumbel-max trick
        """
        samples, classes = logits.shape
        gumbel = -torch.log(-torch.log(self._numbers((samples, num_samples, classes))))
        return _cast(torch.argmax(logits.detach()[:, None, :] + gumbel, dim=-1), dtype)

    def _normal(self, shape: Sequence[int], share: float) -> torch.Tensor:
        """Return normal numbers. share: of the distribution, around its middle"""
        return torch.erfinv((2 * self._numbers(shape) - 1) * share) * math.sqrt(2)

    def _numbers(self, shape: Sequence[int]) -> torch.Tensor:
        return draw_numbers(self._sample, shape)


def draw_numbers(sample: Any, shape: Sequence[int]) -> torch.Tensor:
    """Return uniform numbers of a shape, which belong to the samples if it has them."""
    sizes, count = tuple(map(int, shape)), sample.shape[0]
    rows = sizes[0] // count if sizes and sizes[0] % count == 0 else 0
    ones = sample.reshape(count, -1)[:, :1]
    ones = torch.where(torch.eq(ones, ones), 1.0, 1.0)
    like = torch.ones(sizes)
    if rows:
        like = (ones * torch.ones(1, rows)).reshape(-1, *(1 for _ in sizes[1:])) * like[:1]
    return draw_uniform(sample.recorder, like)


def _cast(values: torch.Tensor, dtype: Any) -> torch.Tensor:
    """Return values in a type of Keras; floats stay those of the step."""
    kind = keras.backend.standardize_dtype(dtype)
    return values if "float" in kind else values.to(getattr(torch, kind))
