"""Messages, pages and docstrings use the field's words instead of those in the tables here."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.messages import PACKAGE, messages, messages_of, modules
from support.pages import CHECKOUT

PAGES = [
    *(CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((CHECKOUT / "docs").glob("*.md")),
]
#: Expressions for words to avoid in messages and pages, and what to write instead.
WORDS = {
    r"way back": "backward pass",
    r"afar": "remote",
    r"amid": "during",
    r"anew": "again",
    r"told": "sent, logged or reported",
    r"turned": "transposed or rotated",
    r"alike": "equal",
    r"gave": "returned",
    r"side by side": "in parallel",
    r"(is|are) no (number|matrix|folder|list|file|tensor|view|loss)s?": "is not a, or is NaN",
    r"is there already": "already exists",
    r"was given": "has",
    r"for ever": "without end",
    r"beforehand": "in advance",
    r"turn is over": "has run",
    r"by itself alone": "alone",
    r"means nothing": "has no effect",
    r"words behind": "arguments after",
    r"(lie|lies) in (?!wait)": "is in",
    r"stands? (in|there|for|before|after)": "is in, precedes or follows",
    r"seen to": "checked",
    r"beside": "next to, with or compared with",
    r"so many": "this many",
    r"(?<!such )as by": "such as by, or with",
    r"(goes|go|going) on": "continues",
    r"anyhow": "in any case",
    r"Python's lock": "the GIL",
}
#: Words that messages avoid, too; pages use them for what a program leaves and for places.
WORDS_OF_MESSAGES = {r"behind": "after", r"nobody": "no user"}
#: Words that docstrings avoid, too; "stands for" is right of a name, a placeholder or a token.
WORDS_OF_DOCSTRINGS = {
    word: remedy for word, remedy in WORDS.items() if not word.startswith(("stands?", "alike"))
} | {r"any ?more": "no longer", r"in vain": "without effect"}
#: First words of a docstring that is a clause instead of a noun or a verb.
OPENINGS = {"What", "Where", "How", "Those", "Which", "Who", "There", "That", "It", "So"}


def wrong_words(text: str, words: dict[str, str]) -> list[str]:
    """Remedies for the words to avoid in a text."""
    return [
        f"{found[0]!r}: write {remedy!r}"
        for word, remedy in words.items()
        for found in re.finditer(rf"\b{word}\b", text, re.IGNORECASE)
    ]


def without_names(message: str) -> str:
    """Return a message without the expressions of an f-string."""
    return re.sub(r"\{[^{}]*\}", "{}", message)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of a module, its classes and functions, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and (text := ast.get_docstring(node)):
                yield first.lineno, text


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page with their numbers, without code."""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if not line.startswith("    "):
            yield number, re.sub(r"`[^`]+`", "``", line)


PACKAGES = sorted({path.relative_to(PACKAGE).parts[0] for path in modules()} - {"__init__.py"})


@pytest.mark.parametrize("package", PACKAGES)
def test_messages(package: str) -> None:
    assert not [
        f"{message}: {remedy}"
        for path in modules(package)
        for message in messages(path)
        for remedy in wrong_words(without_names(message.text), WORDS | WORDS_OF_MESSAGES)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page: Path) -> None:
    assert not [
        f"{page.name}:{line}: {remedy}"
        for line, text in prose(page)
        for remedy in wrong_words(text, WORDS)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_with_a_noun_or_a_verb(package: str) -> None:
    assert not [
        f"{path.relative_to(CHECKOUT)}:{line}: begin with a noun or a verb, not {word!r}"
        for path in modules(package)
        for line, text in docstrings(path)
        if (word := text.split()[0]) in OPENINGS
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings(package: str) -> None:
    assert not [
        f"{path.relative_to(CHECKOUT)}:{line}: {remedy}"
        for path in modules(package)
        for line, text in docstrings(path)
        for remedy in wrong_words(re.sub(r"`[^`]+`", "``", text), WORDS_OF_DOCSTRINGS)
    ]


def test_a_word_is_found() -> None:
    assert wrong_words("the mask is no matrix", WORDS) == [
        "'is no matrix': write 'is not a, or is NaN'"
    ]
    assert not wrong_words("a matrix is needed", WORDS)


def test_messages_are_found() -> None:
    text = """
    LINES = {"a": "lines of a table, which are shown"}
    def f(x, log):
        "A docstring, which nobody is shown."
        why = f"shown by the name {x}"
        log.warning("logged: %s", why)
        print(f"{x}: printed" if x else "again")
        pattern = r"some words in\\sa pattern"
        raise ValueError("x failed: " + why)

    @click.command()
    def g(): "A command."
    """
    assert list(messages_of(re.sub(r"^    ", "", text, flags=re.MULTILINE))) == [
        (2, "lines of a table, which are shown"),
        (5, "shown by the name {x}"),
        (6, "logged: %s"),
        (7, "{x}: printed"),
        (7, "again"),
        (9, "x failed:"),
        (12, "A command."),
    ]
