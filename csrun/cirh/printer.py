"""Printing of a module: the same text as xDSL's, several times as fast.

A compile prints a module after each pass. Attributes are shared by operators and stages, and most
operators have one of two forms.
"""

import re
from collections.abc import Iterable
from io import StringIO

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Attribute, Operation
from xdsl.printer import Printer

from csrun.cirh.ops.base import ASSEMBLY, EFFECT_ASSEMBLY, CirhOp

#: Cached text of attributes, which never change.
_TEXT = "_csrun_text"
#: A string without characters that a literal escapes.
_PLAIN = re.compile(r"[ !#-\[\]-~]*")


def print_module(module: ModuleOp) -> str:
    """Print a module as text, which `parse_module` reads."""
    stream = StringIO()
    _Printer(stream).print_op(module)
    return stream.getvalue() + "\n"


def print_module_of(operators: Iterable[Operation]) -> str:
    """Print a module of these operators, which need not be in any module."""
    stream = StringIO()
    printer = _Printer(stream)
    printer.print_string("builtin.module {")
    with printer.indented():
        for operator in operators:
            printer.print_string("\n")
            printer.print_op(operator)
    printer.print_string("\n}\n")
    return stream.getvalue()


class _Printer(Printer):
    """xDSL's printer without columns, with cached text of attributes."""

    def print_string(self, text: str, *, indent: int | None = None) -> None:
        if "\n" in text:
            super().print_string(text, indent=indent)
        else:  # columns are not needed
            self.stream.write(text)  # type: ignore[union-attr]

    def print_string_literal(self, string: str) -> None:
        if _PLAIN.fullmatch(string):
            self.print_string(f'"{string}"')
        else:
            super().print_string_literal(string)

    def print_attribute(self, attribute: Attribute) -> None:
        self.print_string(self._text(attribute))

    def _text(self, attribute: Attribute) -> str:
        found: str | None = attribute.__dict__.get(_TEXT)
        if found is None:
            outer, self.stream = self.stream, StringIO()
            super().print_attribute(attribute)
            found = attribute.__dict__[_TEXT] = self.stream.getvalue()
            self.stream = outer
        return found

    def print_op(self, op: Operation) -> None:
        form = op.FORM if isinstance(op, CirhOp) and not op.attributes else None
        if form == ASSEMBLY and op.results:
            types = f"({self._texts(op.operand_types)}) -> {self._result_types(op)}"
        elif form == EFFECT_ASSEMBLY:
            types = self._texts(op.operand_types)
        else:
            super().print_op(op)
            return
        self._print_results(op)
        self.print_string(op.name)
        if op.operands:
            self.print_string(" ")
            self.print_list(op.operands, self.print_operand)
        properties = ", ".join(
            name if isinstance(value, UnitAttr) else f"{name} = {self._text(value)}"
            for name, value in op.properties.items()
        )
        self.print_string(f" {{{properties}}} : {types}" if properties else f" : {types}")

    def _result_types(self, op: Operation) -> str:
        types = self._texts(op.result_types)
        return types if len(op.results) == 1 else f"({types})"

    def _texts(self, attributes: Iterable[Attribute]) -> str:
        return ", ".join(map(self._text, attributes))
