"""Names of Python and MLIR for what users name freely."""

import re


def identifier(text: str) -> str:
    """The text as a name: every character that no name has is an underscore."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name.isidentifier() else f"_{name}"
