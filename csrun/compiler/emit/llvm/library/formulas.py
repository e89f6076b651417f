"""Machine code of a library kernel whose computation is a formula, through LAIR."""

from collections.abc import Mapping
from dataclasses import replace

from csrun.compiler.emit.llvm.module import KernelCode, kernel_code
from csrun.compiler.graph.array import Array, Shape
from csrun.compiler.lair.formula import Formula, formula_kernel


def code_of_formula(
    name: str,
    reads: Mapping[str, Array],
    writes: Mapping[str, Array],
    shapes: Mapping[str, Shape],
    formula: Formula,
) -> KernelCode | None:
    """Return machine code of a formula over rows; None if it has no such form.

    shapes: shapes of the arrays in the formula, by key.
    """
    seen: dict[str, Array] = {}
    for key, array in (*reads.items(), *writes.items()):
        found = array.reshaped(shapes[key])
        if found is None:
            return None
        seen[key] = found
    own = {seen[key]: array for key, array in (*writes.items(), *reads.items())}
    kernel, written = formula_kernel(
        name, {key: seen[key] for key in reads}, {key: seen[key] for key in writes}, formula
    )
    code = kernel_code(kernel, written, name)
    if code is None:
        return None
    parameters = tuple(own[array] for array in code.parameters)
    return replace(code, parameters=parameters, rows=kernel.rows.value.data)
