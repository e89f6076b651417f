"""docs/design.md is the house as it is: its table of rooms."""

import re

from support.pages import CHECKOUT, section
from test_imports import EVERYTHING, MAY_IMPORT, NOUNS

PAGE = CHECKOUT / "docs" / "design.md"


def rows(title: str) -> list[list[str]]:
    """The cells of each row of a section's table, the head aside."""
    lines = [line for line in section(PAGE, title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def rooms_in(text: str) -> frozenset[str]:
    """What a cell of the table means."""
    if text == "all rooms":
        return EVERYTHING
    named = frozenset(re.findall(r"`(\w+)`", text))
    return named | NOUNS if "the nouns" in text else named


def test_the_table_of_rooms_is_that_of_the_import_test() -> None:
    table = {room.strip("`"): rooms_in(imports) for room, _, _, imports in rows("The floors")}
    assert table == MAY_IMPORT


def test_the_nouns_are_the_floor_of_that_name() -> None:
    floors = {room.strip("`"): floor for room, floor, _, _ in rows("The floors")}
    assert {room for room, floor in floors.items() if floor == "nouns"} == NOUNS
