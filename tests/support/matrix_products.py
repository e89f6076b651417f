"""Matrix products by machine code, on arrays that end, or begin, at a guard page."""

from collections.abc import Callable, Sequence
from ctypes import addressof, c_int64, c_void_p
from functools import cache

import numpy as np
import pytest
from support.machine_code import Guarded

from csrun.base.half_formats import HalfFormat
from csrun.compiler.emit.llvm.products.product_functions import product_code
from csrun.executable import bfloat16, machine_code
from csrun.executable.product_operand import ProductOperand
from csrun.executable.products import (
    SCRATCH_BYTES,
    ProductPlan,
    Tile,
    plan_product,
)


def _needs(instructions: bfloat16.Instructions) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not (machine_code.is_supported() and bfloat16.has(instructions)),
        reason=f"no {bfloat16.TITLES[instructions]} here, or llvmlite is not installed",
    )


#: Instructions that multiply bfloat16, each run where the machine has it.
INSTRUCTIONS = [pytest.param(each, marks=_needs(each)) for each in bfloat16.TILES]

_JOB_NUMBER = np.array([1])  # of a job that is the first


def module_of(tile: Tile, half: HalfFormat | None = None) -> str:
    """Module with all product functions; half: 16-bit format of B."""
    code = product_code(tile, half)
    return "\n".join([code.text, *code.declared.values()]) + "\n"


@cache
def machine_of(tile: Tile, half: HalfFormat | None = None) -> machine_code.MachineCode:
    """Loaded product functions."""
    return machine_code.MachineCode([machine_code.build(module_of(tile, half))])


def guarded(values: np.ndarray, strides: Sequence[int], at_end: bool) -> np.ndarray:
    """A copy with these strides, in elements; NaN between the elements."""
    size = 1 + sum((n - 1) * s for n, s in zip(values.shape, strides, strict=True))
    memory = Guarded(4 * size, at_end).memory.view(np.float32)
    memory[:] = np.nan
    steps = tuple(4 * s for s in strides)
    array = np.lib.stride_tricks.as_strided(memory, values.shape, steps)
    array[...] = values
    return array


def plan_of(
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    adds: bool,
    packed: int,
    tile: Tile,
    threads: int = 2,
) -> ProductPlan | None:
    operands = (ProductOperand.of(array) for array in (a, b, out))
    return plan_product(*operands, adds, packed, tile, threads, _JOB_NUMBER.ctypes.data)


def multiply(
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    tile: Tile,
    adds: bool = False,
    at_end: bool = True,
    chunks: Callable[[int], int] = lambda chunk: chunk,
    threads: int = 2,
    half: HalfFormat | None = None,
) -> None:
    """Write out = a @ b, or add to it.

    chunks: gives the rows of a chunk that is multiplied, or columns, up to whole panels
    """
    needed = plan_of(a, b, out, adds, 0, tile, threads)
    assert needed is not None
    packed, scratch = Guarded(needed.packed_bytes, at_end), Guarded(SCRATCH_BYTES, at_end)
    plan = plan_of(a, b, out, adds, packed.memory.ctypes.data, tile, threads)
    assert plan is not None
    for step in plan.steps:
        words = (c_int64 * len(step.words))(scratch.memory.ctypes.data, *step.words[1:])
        chunk = step.chunk if ".pack" in step.function else chunks(step.chunk)
        if ".columns" in step.function:
            chunk = -(-chunk // tile.columns) * tile.columns
        run = machine_of(tile, half).function(step.function, c_void_p, c_int64, c_int64)
        for first in range(0, step.rows, chunk):
            run(addressof(words), first, min(first + chunk, step.rows))
