"""Parameters of the functions of products, and the code of their calls."""

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import INDEX, LaneValue, index
from csrun.executable.products import Tile

JOB = "ptr arguments, i64 first, i64 last"
PACK = "ptr b, i64 b_k, i64 b_col, i64 n, i64 k, ptr packed"
ROWS = (
    "ptr a, i64 a_row, i64 a_k, ptr packed, ptr c, i64 c_row, "
    "i64 m, i64 n, i64 k, i64 adds, ptr scratch"
)
PART = f"{ROWS}, i64 column, i64 end, i64 a_is_packed"
TILE = (
    "ptr a, i64 a_row, i64 a_k, ptr b, i64 k, ptr c, i64 c_row, "
    "i64 rows, i64 columns, i64 adds, ptr next, i64 next_step"
)
TALL_TILE = f"{TILE}, i64 a_tile"


def types_of(parameters: str) -> str:
    return ", ".join(each.split()[0] for each in parameters.split(","))


def argument(name: str) -> LaneValue:
    return LaneValue(f"%{name}", INDEX)


def write_call(code: Code, function: str, parameters: str, *arguments: LaneValue | str) -> None:
    """Call a function with numbers and addresses, in the order of its parameters."""
    types = [each.split()[0] for each in parameters.split(",")]
    texts = [a if isinstance(a, str) else a.text for a in arguments]
    named = ", ".join(f"{kind} {text}" for kind, text in zip(types, texts, strict=True))
    code.lines.append(f"  call void @{function}({named})")


def address_at(
    code: Code, pointer: str, *terms: tuple[LaneValue, LaneValue], dtype: str = "float32"
) -> str:
    """An address, from numbers and their strides."""
    for number, stride in terms:
        pointer = code.offset(pointer, dtype, code.op("mul", number, stride))
    return pointer


def at_most(code: Code, size: LaneValue, most: int) -> LaneValue:
    return code.call("smin", size, index(most))


def padded_columns(code: Code, columns: LaneValue, tile: Tile) -> LaneValue:
    """Columns of whole panels."""
    up = code.op("add", columns, index(tile.columns - 1))
    return code.op("and", up, index(-tile.columns))


def panel_lanes(code: Code, k: LaneValue, tile: Tile) -> LaneValue:
    """Return the number of lanes of a panel for k numbers."""
    unit = tile.numbers * tile.step
    if unit == 1:
        return k
    units = code.op("udiv", code.op("add", k, index(unit - 1)), index(unit))
    return code.op("mul", units, index(tile.step))
