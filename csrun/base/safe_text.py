"""Text of unknown origin, made safe to show on a terminal."""

_KEPT = "\n\t"


def printable(text: str) -> str:
    r"""The text with all that a terminal would obey or hide shown as escapes, e.g. ``\x1b``.

    Line ends and tabs stay. Names of scripts, modules and keys, and what other accounts wrote, may
    hold escape sequences: they would change the reader's screen, title or clipboard.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _KEPT else _escaped(char) for char in text)


def printable_line(text: str) -> str:
    r"""The same for one cell of a table, or one line: line ends and tabs are escaped as well."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()
