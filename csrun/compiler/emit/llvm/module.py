"""Machine code of a program: an LLVM IR module with a function for each distinct kernel."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from csrun.base.half_formats import HalfFormat
from csrun.compiler.emit.llvm.code_sinking import sink_stages
from csrun.compiler.emit.llvm.lane_values import NoMachineCodeError
from csrun.compiler.emit.llvm.loops.epilogue import EpilogueWriter
from csrun.compiler.emit.llvm.loops.function import FunctionWriter
from csrun.compiler.emit.llvm.loops.stages import KernelStages
from csrun.compiler.emit.llvm.products.product_functions import CALLED, product_code
from csrun.compiler.emit.llvm.team import DECLARED, TEAM_CODE
from csrun.compiler.graph.array import Array
from csrun.compiler.lair import dialect as lair
from csrun.executable.products import Tile


@dataclass(frozen=True)
class KernelCode:
    """Functions of a kernel, and what their callers must know.

    parameters: arrays, in the order of the arguments.
    numbers: texts of the numbers passed with each call.
    cut: number of rows that must stay together when threads share a call.
    rows: rows of a call; None: those of the kernel's loop.
    constants: texts of arrays created when the program is bound, by the kernel's `prepare` lines;
        their addresses follow the parameters'.
    begin_rows: rows of the function `name.begin`, which is called before; 0 without one.
    """

    name: str
    text: str
    declared: Mapping[str, str]
    parameters: tuple[Array, ...]
    numbers: tuple[str, ...]
    scratch_bytes: int
    parts_bytes: int
    cut: int
    has_epilogue: bool
    rows: int | None = None
    constants: tuple[str, ...] = ()
    begin_rows: int = 0


@dataclass(frozen=True)
class SharedCode:
    """Machine code with its source, and the functions of program.py that have it."""

    code: KernelCode
    source: str
    functions: list[str]


def kernel_code(op: lair.KernelOp, writes: Mapping[str, Array], name: str) -> KernelCode | None:
    """Return the machine code of a kernel, under this name; None if it has no such form."""
    try:
        stages = _stages(op, writes)
        writer, end_writer = FunctionWriter(stages), EpilogueWriter(stages)
        main, end = writer.write(), end_writer.write_epilogue()
    except NoMachineCodeError:
        return None
    functions = [function_text(name, "ptr %arguments, i64 %first, i64 %last", main)]
    if end:
        functions.append(function_text(f"{name}.end", "ptr %arguments", end))
    return KernelCode(
        name,
        "\n\n".join(functions),
        {**writer.declared, **end_writer.declared},
        tuple(stages.parameters),
        tuple(stages.numbers),
        stages.scratch_bytes,
        stages.parts_bytes,
        stages.cut,
        bool(end),
    )


def _stages(op: lair.KernelOp, writes: Mapping[str, Array]) -> KernelStages:
    """Return the stages, with operators placed late if that saves memory between stages."""
    stages = KernelStages(op, writes)
    late = sink_stages(stages.stages)
    if all(late[member.value] == member.stage for member in stages.members):
        return stages
    try:
        return KernelStages(op, writes, late)
    except NoMachineCodeError:  # an array is overwritten before
        return stages


def function_text(name: str, arguments: str, lines: Iterable[str]) -> str:
    """Return the text of a function without a result."""
    return "\n".join([f"define void @{name}({arguments}) nounwind {{", *lines, "}"])


def module_text(kernels: Iterable[SharedCode]) -> str:
    """Return the text of the module of kernels, each with its functions and source as comments."""
    declared: dict[str, str] = {}
    parts = []
    for shared in kernels:
        code = shared.code
        declared |= code.declared
        declared |= {name: text for name, text in CALLED.items() if f"@{name}(" in code.text}
        lines = [*shared.source.splitlines(), f"in program.py: {', '.join(shared.functions)}"]
        comments = "\n".join(f"; {line}".rstrip() for line in lines)
        parts.append(f"{comments}\n{code.text}")
    return _module(parts, declared)


@cache
def common_text(tile: Tile, half: HalfFormat | None = None, pairs: Tile | None = None) -> str:
    """Return the module shared by all programs for a CPU: matrix products and the thread pool.

    half: format of words that products read.
    pairs: tile of products of pairs, if the CPU has the instructions.
    """
    products = [product_code(each, half) for each in (tile, pairs) if each is not None]
    declared = dict(DECLARED)
    for each in products:
        declared |= each.declared
    return _module([*(each.text for each in products), TEAM_CODE], declared)


def _module(parts: Sequence[str], declared: Mapping[str, str]) -> str:
    declarations = "\n".join(declared[name] for name in sorted(declared))
    return "\n\n".join([*parts, declarations]) + "\n"
