"""Random programs from seeds."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from support.random_programs.program import TOKENS, Program, Statement, Tail

UNARY = (
    "relu", "gelu", "tanh", "sigmoid", "silu", "softplus", "exp", "log", "sqrt"
)  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "where")
EXTREMA = ("amax", "amin", "max", "min")


#: What a program may be about: functions that half of its statements are, where they can be.
SUBJECTS = {
    "all": (),
    "images": ("image", "convolution", "max_pool", "average_pool"),
    "statistics": ("batch_norm",),
    "lookups": ("gather", "amax", "amin", "max", "min"),
    "noise": ("dropout", "attend"),
    "turns": ("rotate", "attend"),
}


def random_program(seed: int, subject: str | None = None) -> Program:
    """A program of 3 to 10 statements; about a subject drawn at random, unless it is given."""
    random = np.random.default_rng(seed)
    favourites = SUBJECTS[subject or str(random.choice(list(SUBJECTS)))]
    tails: dict[int, Tail] = {0: (3, 4), 1: (3, 4)}
    statements: dict[int, Statement] = {}
    for number in range(2, 2 + int(random.integers(3, 11))):
        choices = list(_choices(tails, number, random))
        liked = [choice for choice in choices if choice[0].function in favourites]
        choices = liked if liked and random.integers(2) else choices
        statements[number], tails[number] = choices[int(random.integers(len(choices)))]
    used = {operand for each in statements.values() for operand in each.operands}
    return Program(seed, statements, tuple(number for number in statements if number not in used))


def _choices(tails: dict[int, Tail], number: int, random: Any) -> Iterator[tuple[Statement, Tail]]:
    """One way of each kind to continue, from values drawn at random."""
    values = [value for value, tail in tails.items() if tail]
    x = int(random.choice(values))
    tail = tails[x]
    yield Statement(str(random.choice(UNARY)), (x,)), tail
    yield Statement(str(random.choice(UNARY)), (x,)), tail
    alike = [value for value in values if _broadcast(tails[value], tail) is not None]
    y = int(random.choice(alike))
    for _ in range(3):
        yield Statement(str(random.choice(BINARY)), (x, y)), _broadcast(tail, tails[y]) or tail
    units = int(random.integers(1, 5))
    yield Statement("dense", (x,), (units, number)), (*tail[:-1], units)
    yield Statement("shift", (x,), (number,)), tail
    if tail[-1] > 1:
        yield Statement("norm", (x,), (number,)), tail
        yield Statement("softmax", (x,)), tail
        start, step = int(random.integers(0, 2)), int(random.integers(1, 3))
        yield (
            Statement("part", (x,), (start, step)),
            (*tail[:-1], len(range(start, tail[-1], step))),
        )
    axis, keep = int(random.integers(1, len(tail) + 1)), bool(random.integers(2))
    left = (*tail[: axis - 1], *([1] if keep else []), *tail[axis:])
    if left:
        yield Statement(str(random.choice(["sum", "mean"])), (x,), (axis, keep)), left
        yield Statement(str(random.choice(EXTREMA)), (x,), (axis, keep)), left
    if len(tail) == 2:
        yield Statement("transpose", (x,), ((0, 2, 1),)), tail[::-1]
        yield Statement("reshape", (x,), ((tail[0] * tail[1],),)), (tail[0] * tail[1],)
        yield Statement("product", (x,)), (tail[0], tail[0])
        yield Statement("attend", (x,), (bool(random.integers(2)),)), tail
        if tail[0] == TOKENS:
            yield Statement("cross_entropy", (x,), (number,)), ()
        yield Statement("image", (x,)), (1, *tail)
    if len(tail) == 3:
        yield Statement("reshape", (x,), ((prod(tail),),)), (prod(tail),)
        yield Statement("reshape", (x,), ((tail[0], tail[1] * tail[2]),)), (tail[0], prod(tail[1:]))
        yield from _images(x, tail, number, random)
    if len(tail) >= 2 and tail[-1] >= 2:
        size = 2 * int(random.integers(1, tail[-1] // 2 + 1))
        yield Statement("rotate", (x,), (size, bool(random.integers(2)))), tail
    if len(tail) == 1:
        yield Statement("gather", (x,), (1,)), (TOKENS,)
    elif len(tail) == 2:
        along = int(random.integers(1, 3)) if tail[0] >= TOKENS else 1
        yield Statement("gather", (x,), (along,)), (TOKENS, 1)
    yield Statement("dropout", (x,), (float(random.choice([0.1, 0.5])), number)), tail
    yield Statement("batch_norm", (x,), (number,)), tail
    if len(tail) == 1 and tail[0] % 2 == 0:
        yield Statement("reshape", (x,), ((2, tail[0] // 2),)), (2, tail[0] // 2)
    same = [value for value in values if tails[value][:-1] == tail[:-1]]
    z = int(random.choice(same))
    yield Statement("concatenate", (x, z)), (*tail[:-1], tail[-1] + tails[z][-1])


def _images(x: int, tail: Tail, number: int, random: Any) -> Iterator[tuple[Statement, Tail]]:
    """Windows over an image: of a convolution, and of both pools."""
    channels, filters = tail[0], int(random.integers(1, 5))
    groups = int(random.choice([n for n in range(1, 5) if channels % n == filters % n == 0]))
    stride, padding, dilation = (int(random.integers(least, 3)) for least in (1, 0, 1))
    size = int(random.integers(1, 4))
    seen = _windows(tail, size, stride, padding, dilation)
    if min(seen) > 0:
        options = (filters, size, stride, padding, dilation, groups, number)
        yield Statement("convolution", (x,), options), (filters, *seen)
    padding = min(padding, size // 2)  # PyTorch's limit, so that no window is all padding
    dilation = 1 if padding else dilation
    seen = _windows(tail, size, stride, padding, dilation)
    if min(seen) > 0:
        yield Statement("max_pool", (x,), (size, stride, padding, dilation)), (channels, *seen)
    seen = _windows(tail, size, stride, padding, 1)
    if min(seen) > 0:
        counts = bool(random.integers(2))
        yield Statement("average_pool", (x,), (size, stride, padding, counts)), (channels, *seen)


def _windows(tail: Tail, size: int, stride: int, padding: int, dilation: int) -> Tail:
    """How many windows of an image's rows, and of its columns, there are."""
    return tuple((n + 2 * padding - dilation * (size - 1) - 1) // stride + 1 for n in tail[1:])


def _broadcast(a: Tail, b: Tail) -> Tail | None:
    """What two tails of one length broadcast to; samples stay on the first axis."""
    if len(a) != len(b) or any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        return None
    return tuple(max(m, n) for m, n in zip(a, b, strict=True))
