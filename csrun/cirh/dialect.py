"""The dialect `cirh`: all operators and attributes, and the text form of a module."""

from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp, StringAttr
from xdsl.ir import Attribute, Dialect
from xdsl.parser import Parser
from xdsl.printer import Printer

from csrun.base.families import families_of
from csrun.base.mode import RunMode
from csrun.cirh import algorithms
from csrun.cirh.ops import constant_arrays, model

PRECISION = "cirh.precision"
RUN_MODE = "cirh.run_mode"

FAMILIES = families_of("csrun.cirh.ops", "OPS")
ATTRIBUTES = (*model.ATTRIBUTES, *constant_arrays.ATTRIBUTES, *algorithms.ATTRIBUTES)
CIRH = Dialect("cirh", [op for family in FAMILIES for op in family.OPS], list(ATTRIBUTES))


def new_module(precision: str, run_mode: RunMode) -> ModuleOp:
    """An empty module: one block, operators in the order in which they run."""
    attributes = {PRECISION: StringAttr(precision), RUN_MODE: StringAttr(run_mode)}
    return ModuleOp([], attributes=attributes)


def precision_of(module: ModuleOp) -> str:
    """float32 or float64: the element type of all arithmetic of the module."""
    return _text(module, PRECISION)


def run_mode_of(module: ModuleOp) -> RunMode:
    """Return the run mode of a module: training, evaluation or prediction."""
    return RunMode(_text(module, RUN_MODE))


def print_module(module: ModuleOp) -> str:
    """The module as text; `parse_module` reads it back."""
    stream = StringIO()
    _Printer(stream).print_op(module)
    return stream.getvalue() + "\n"


class _Printer(Printer):
    """xDSL's; the text of an attribute, which many operators share, is made once."""

    def __init__(self, stream: StringIO) -> None:
        super().__init__(stream)
        self._stream = stream
        # By id, as an attribute's hash goes through all of it; kept, so that no other gets its id.
        self._texts: dict[int, tuple[Attribute, str]] = {}

    def print_string(self, text: str, *, indent: int | None = None) -> None:
        if "\n" in text:
            super().print_string(text, indent=indent)
        else:  # nobody asks for columns
            self._stream.write(text)

    def print_attribute(self, attribute: Attribute) -> None:
        found = self._texts.get(id(attribute))
        if found is None:
            found = self._texts[id(attribute)] = attribute, str(attribute)
        self.print_string(found[1])


def parse_module(text: str, name: str = "<text>") -> ModuleOp:
    """A module from its text.

    Raises: xDSL's ParseError with line and column
    """
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(CIRH)
    return Parser(context, text, name).parse_module()


def _text(module: ModuleOp, key: str) -> str:
    value = module.attributes[key]
    assert isinstance(value, StringAttr), f"{key} is text"
    return value.data
