"""Kernels run alone: their text, on given arrays."""

from pathlib import Path

import numpy as np
from support.aligned_arrays import zeros_of

from csrun.compiler.emit.codegen import HEAD, REDUCTIONS, numpy_names
from csrun.compiler.emit.kernel_functions import KernelFunctions
from csrun.compiler.emit.local_names import Names
from csrun.executable import Runtime, StepState


def bound(kernels, given, form="numpy", threads=1):
    """Function that runs the kernels' lines, and all arrays by name, NaN by default.

    form: `llvm` for machine code, by this many threads
    """
    arrays = dict(given)
    for kernel in kernels:
        for array in (*kernel.reads, *kernel.writes, *kernel.scratch):
            if array.name not in arrays:
                arrays[array.name] = zeros_of(*array.whole, dtype=array.dtype)
                arrays[array.name][...] = np.nan if "float" in array.dtype else 1
    names = Names({name: array.shape for name, array in arrays.items()}, [])
    functions = KernelFunctions(kernels)
    lines = [line for kernel in kernels for line in functions.emit(kernel, names.of)]
    prepared = [line for kernel in kernels for line in functions.prepare(kernel, names.of)]
    body = [REDUCTIONS, *functions.lines()]
    bindings = [
        *names.bindings,
        *prepared,
        "def run(step):",
        *(f"    {line}" for line in lines),
    ]
    text, scope = "\n".join(body), {"v": arrays, "runtime": Runtime(seed=0)}
    called = ", ".join(sorted(numpy_names("\n".join([text, *bindings]))))
    exec(HEAD.format(version="0", checksum="0", functions=called) + text, scope)
    if form == "llvm":
        files = functions.kernel_files()
        assert files is not None, "none of the loops has machine code"
        files.replace_functions(scope, Path("kernels"), threads=threads)
    exec("\n".join(bindings), scope)
    return lambda: scope["run"](StepState()), arrays
