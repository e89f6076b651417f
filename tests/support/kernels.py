"""Kernels by themselves: their text, over given arrays."""

import numpy as np

from csrun.compiler.emit.codegen import HEAD, REDUCTIONS, numpy_names
from csrun.compiler.emit.local_names import Names
from csrun.executable import StepState


def bound(kernels, given):
    """A function that runs the kernels' lines, and all arrays by name; those not given are NaN."""
    arrays = dict(given)
    for kernel in kernels:
        for array in (*kernel.reads, *kernel.writes, *kernel.scratch):
            filled = np.full(array.whole, np.nan if "float" in array.dtype else 1, array.dtype)
            arrays.setdefault(array.name, filled)
    names = Names({name: array.shape for name, array in arrays.items()}, [])
    lines = [line for kernel in kernels for line in kernel.emit(names.of)]
    prepared = [line for kernel in kernels for line in kernel.prepare(names.of)]
    body = [
        REDUCTIONS,
        *names.bindings,
        *prepared,
        "def run(step):",
        *(f"    {line}" for line in lines),
    ]
    text, scope = "\n".join(body), {"v": arrays}
    called = ", ".join(sorted(numpy_names(text)))
    exec(HEAD.format(version="0", checksum="0", functions=called) + text, scope)
    return lambda: scope["run"](StepState()), arrays
