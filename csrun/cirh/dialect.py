"""The dialect `cirh`: all operators and attributes, and the text form of a module."""

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Dialect
from xdsl.parser import Parser

from csrun.base.families import families_of
from csrun.base.half_formats import HalfFormat
from csrun.base.mode import RunMode
from csrun.cirh import algorithms
from csrun.cirh.ops import constant_arrays, model
from csrun.cirh.ops.base import attribute, plain

PRECISION = "cirh.precision"
STORAGE = "cirh.storage"
RUN_MODE = "cirh.run_mode"

FAMILIES = families_of("csrun.cirh.ops", "OPS")
ATTRIBUTES = (*model.ATTRIBUTES, *constant_arrays.ATTRIBUTES, *algorithms.ATTRIBUTES)
CIRH = Dialect("cirh", [op for family in FAMILIES for op in family.OPS], list(ATTRIBUTES))


def new_module(precision: str, run_mode: RunMode) -> ModuleOp:
    """Return an empty module: one block, operators in execution order."""
    attributes = {PRECISION: StringAttr(precision), RUN_MODE: StringAttr(run_mode)}
    return ModuleOp([], attributes=attributes)


def precision_of(module: ModuleOp) -> str:
    """Return the element type of all arithmetic of the module: float32 or float64."""
    return _text(module, PRECISION)


def storage_of(module: ModuleOp) -> HalfFormat | None:
    """Return the 16-bit format of stored numbers; None if they are as wide as arithmetic."""
    found = module.attributes.get(STORAGE)
    if not isinstance(found, DictionaryAttr):
        return None
    name, bits, bias = (plain(found.data[key]) for key in ("name", "mantissa_bits", "bias"))
    return HalfFormat(str(name), int(bits or 0), int(bias or 0))


def set_storage(module: ModuleOp, kind: HalfFormat) -> None:
    """Set the 16-bit format in which the module stores numbers."""
    found: dict[str, str | int] = {
        "name": kind.name,
        "mantissa_bits": kind.mantissa_bits,
        "bias": kind.bias,
    }
    module.attributes[STORAGE] = DictionaryAttr({k: attribute(v) for k, v in found.items()})


def run_mode_of(module: ModuleOp) -> RunMode:
    """Return the run mode of a module: training, evaluation or prediction."""
    return RunMode(_text(module, RUN_MODE))


def parse_module(text: str, name: str = "<text>") -> ModuleOp:
    """Parse a module from its text.

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
