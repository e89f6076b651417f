"""Conversion of user-defined names to identifiers of Python and MLIR."""

import keyword
import re


def identifier(text: str) -> str:
    """The text as a name: an underscore in place of other characters, and before a keyword."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"_{name}"
