"""The machine code of a program: a module of LLVM IR with a function for each distinct kernel."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from csrun.base.half_formats import HalfFormat
from csrun.compiler.emit.llvm.code import NoMachineCodeError
from csrun.compiler.emit.llvm.ends import EndWriter
from csrun.compiler.emit.llvm.function import FunctionWriter
from csrun.compiler.emit.llvm.late import late_stages
from csrun.compiler.emit.llvm.products import CALLED, product_code
from csrun.compiler.emit.llvm.stages import KernelStages
from csrun.compiler.emit.llvm.team import DECLARED, TEAM_CODE
from csrun.compiler.graph.array import Array
from csrun.compiler.lair import dialect as lair
from csrun.executable.products import Tile


@dataclass(frozen=True)
class KernelCode:
    """The functions of a kernel, and what calls them needs to know.

    parameters: arrays, in the order of the arguments. numbers: texts of those that come with each
    call. cut: rows that stay together where several threads share a call. rows: those that a call
    computes, None for those of the kernel's loop. constants: texts of arrays that are made when the
    program is bound, by the kernel's lines for that; their addresses come after the parameters'.
    begin_rows: of the function `name.begin`, which is called before; 0 if there is none.
    """

    name: str
    text: str
    declared: Mapping[str, str]
    parameters: tuple[Array, ...]
    numbers: tuple[str, ...]
    scratch_bytes: int
    parts_bytes: int
    cut: int
    has_end: bool
    rows: int | None = None
    constants: tuple[str, ...] = ()
    begin_rows: int = 0


def kernel_code(op: lair.KernelOp, writes: Mapping[str, Array], name: str) -> KernelCode | None:
    """The machine code of a kernel, under this name; None where it has no such form."""
    try:
        stages = _stages(op, writes)
        writer, end_writer = FunctionWriter(stages), EndWriter(stages)
        main, end = writer.write(), end_writer.write_end()
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
    """The stages, operators as late as that saves memory between them."""
    stages = KernelStages(op, writes)
    late = late_stages(stages.stages)
    if all(late[member.value] == member.stage for member in stages.members):
        return stages
    try:
        return KernelStages(op, writes, late)
    except NoMachineCodeError:  # an array is overwritten before
        return stages


def function_text(name: str, arguments: str, lines: Iterable[str]) -> str:
    """A function that returns nothing."""
    return "\n".join([f"define void @{name}({arguments}) nounwind {{", *lines, "}"])


def module_text(kernels: Mapping[str, tuple[KernelCode, str]]) -> str:
    """The module of kernels, each with its source as comments."""
    declared: dict[str, str] = {}
    parts = []
    for code, source in kernels.values():
        declared |= code.declared
        declared |= {name: text for name, text in CALLED.items() if f"@{name}(" in code.text}
        comments = "\n".join(f"; {line}".rstrip() for line in source.splitlines())
        parts.append(f"{comments}\n{code.text}")
    return _module(parts, declared)


@cache
def common_text(tile: Tile, half: HalfFormat | None = None, pairs: Tile | None = None) -> str:
    """The module that programs for one CPU have in common: products, and the team of threads.

    half: the format of words that products read. pairs: tile of products of pairs, if there are any
    """
    products = [product_code(each, half) for each in (tile, pairs) if each is not None]
    declared = dict(DECLARED)
    for each in products:
        declared |= each.declared
    return _module([*(each.text for each in products), TEAM_CODE], declared)


def _module(parts: Sequence[str], declared: Mapping[str, str]) -> str:
    declarations = "\n".join(declared[name] for name in sorted(declared))
    return "\n\n".join([*parts, declarations]) + "\n"
