"""The documentation pages and their contents: sections, blocks, table cells."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

CHECKOUT = Path(__file__).parents[2]
README = CHECKOUT / "README.md"
PAGES = (
    README,
    CHECKOUT / "CONTRIBUTING.md",
    CHECKOUT / "SECURITY.md",
    *sorted((CHECKOUT / "docs").glob("*.md")),
    *sorted((CHECKOUT / "reference_models").glob("**/*.md")),
)
_BLOCK = re.compile(r"(?:^(?: {4}.*)?\n)+", re.MULTILINE)


def section(page: Path, title: str) -> str:
    """The text under a heading, up to the next heading of its level or above."""
    text = page.read_text()
    heading = re.search(rf"^(#+) {re.escape(title)}\n", text, re.MULTILINE)
    assert heading, f"{page.name} has no section {title!r}"
    after = text[heading.end() :]
    return re.split(rf"^#{{1,{len(heading[1])}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def blocks(text: str) -> Iterator[str]:
    """The indented blocks of a page, without their indent."""
    for match in _BLOCK.finditer(f"{text}\n"):
        if match[0].strip():
            yield dedent(match[0]).strip("\n") + "\n"


def first_cells(text: str) -> list[str]:
    """Text between the backticks of each table row's first cell."""
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)
