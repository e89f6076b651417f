"""Names that a function's code loads and stores, read from its bytecode."""

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType


@dataclass(frozen=True)
class LoadedNames:
    """Names that a code object and those nested in it load: global ones, and attributes."""

    globals: frozenset[str]
    attributes: frozenset[str]


@cache
def loads_of(code: CodeType) -> LoadedNames:
    """Return the names that a code object loads."""
    found = list(_instructions(code))
    return LoadedNames(
        frozenset(i.argval for i in found if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")),
        frozenset(i.argval for i in found if i.opname in ("LOAD_ATTR", "LOAD_METHOD")),
    )


def line_of_store(code: CodeType, name: str) -> str | None:
    """Return `file:line` of the first instruction that stores an attribute or global `name`."""
    return _first_line(code, ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"), name)


def line_of_load(code: CodeType, name: str) -> str | None:
    """Return `file:line` of the first instruction that loads an attribute or global `name`."""
    return _first_line(code, ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_DEREF"), name)


def _first_line(code: CodeType, opnames: tuple[str, ...], name: str) -> str | None:
    line = code.co_firstlineno
    for each in _instructions(code):
        line = each.starts_line or line
        if each.opname in opnames and each.argval == name:
            return f"{code.co_filename}:{line}"
    return None


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
