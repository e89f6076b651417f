"""Lines of a terminal as styled texts, and tables of them.

A frame per second must cost almost nothing. Rich's tables and layouts measure and wrap each cell in
every frame, which takes ten times as long as these single-height lines.
"""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from csrun.base.safe_text import printable_line

Line = list[Segment]
MOST_CHARACTERS = 300  # characters of foreign text: a screen has no more
LEAST_WIDTH = 4  # minimum width of a column on a narrow screen
GAP = 2  # between columns
READABLE = 16  # width of a column at which most names can be distinguished
PLAIN = Style.null()
DIM, BOLD = Style(dim=True), Style(bold=True)
GREEN, YELLOW, RED = Style(color="green"), Style(color="yellow"), Style(color="red")
WARNING = Style(bold=True, color="yellow")


def cell(text: str, style: Style = PLAIN, most: int = MOST_CHARACTERS) -> Segment:
    """Return foreign text with control characters escaped, shortened."""
    return Segment(cut(printable_line(text[: most + 1]), most), style)


def cut(text: str, width: int) -> str:
    """Shorten a text to this width."""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1)}…" if width > 0 else ""


def styled(line: Iterable[Segment], style: Style) -> Line:
    """Return a line in a style that its parts may override."""
    return [Segment(part.text, style + (part.style or PLAIN)) for part in line]


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Segment]],
    width: int,
    right: Iterable[str],
    less_wanted: Iterable[str] = (),
) -> list[Line]:
    """Return the lines of a table in this width.

    right: headings of right-aligned columns.
    less_wanted: headings of columns that are omitted, in this order, if others would be narrower
        than READABLE.
    """
    cells = [[Segment(heading, DIM) for heading in headings], *rows]
    columns = dict(zip(headings, zip(*cells, strict=True), strict=True))
    widths = {head: max(cell_len(each.text) for each in columns[head]) for head in headings}
    for heading in less_wanted:
        needed = sum(min(each, READABLE) + GAP for each in widths.values()) - GAP
        if needed > width:
            widths.pop(heading, None)
    shown = fitted(widths.values(), width - GAP * (len(widths) - 1))
    is_right = [heading in right for heading in widths]
    lines = zip(*(columns[heading] for heading in widths), strict=True)
    return [_row(line, shown, is_right) for line in lines]


def fitted(widths: Iterable[int], room: int) -> list[int]:
    """Return widths of columns within a total width: the widest are reduced first."""
    found = list(widths)
    while (excess := sum(found) - room) > 0 and (widest := max(found)) > LEAST_WIDTH:
        below = max((each for each in found if each < widest), default=0)
        at = found.index(widest)
        found[at] = max(LEAST_WIDTH, widest - min(excess, max(1, widest - below)))
    return found


def _row(row: Sequence[Segment], widths: Sequence[int], is_right: Sequence[bool]) -> Line:
    line: Line = []
    for part, width, to_right in zip(row, widths, is_right, strict=True):
        text = cut(part.text, width)
        spaces = " " * (width - cell_len(text))
        text = f"{spaces}{text}" if to_right else f"{text}{spaces}"
        line += [Segment(text, part.style), Segment(" " * GAP)]
    return line[:-1]


def width_of(lines: Iterable[Line]) -> int:
    """Return the width of the longest line."""
    return max((sum(cell_len(part.text) for part in line) for line in lines), default=0)


def join_columns(left: Sequence[Line], right: Sequence[Line], at: int) -> list[Line]:
    """Return lines on the left, in this width, and others to the right of them."""
    count = max(len(left), len(right))
    both = ([*lines, *[[]] * (count - len(lines))] for lines in (left, right))
    return [[*in_width(one, at), *other] for one, other in zip(*both, strict=True)]


def in_width(line: Line, width: int) -> Line:
    """Return a line in exactly this width, shortened or padded."""
    return Segment.adjust_line_length(line, width)
