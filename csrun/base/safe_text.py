"""Escaping of untrusted text for display on a terminal."""

_KEPT = "\n\t"


def printable(text: str) -> str:
    r"""Escape the control and invisible characters of a text, e.g. ``\x1b``.

    Line ends and tabs stay. Names of scripts, modules and keys, and text written by other accounts,
    may contain escape sequences that change the reader's screen, title or clipboard.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _KEPT else _escaped(char) for char in text)


def printable_line(text: str) -> str:
    r"""Escape a text for one line or table cell: line ends and tabs are escaped, too."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()
