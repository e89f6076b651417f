"""Options of the Python interpreter that precede the script on its command line."""

_WITH_ARGUMENT = "WX"
_LONG_WITH_ARGUMENT = "--check-hash-based-pycs"
_PROGRAM = "cm"  # no option follows `-c code` or `-m module`


def split_options(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the arguments of `python` into its options, and the script, `-m` or `-c` with the rest.

    Source: Python's manual, "Command line and environment"
    """
    at = 0
    while at < len(words) and (length := _length(words[at])):
        at += length
    return words[:at], words[at:]


def _length(word: str) -> int:
    """Return the number of arguments of the option that starts here; 0 if it is not an option."""
    if word == _LONG_WITH_ARGUMENT:
        return 2
    if word.startswith("--"):
        return 1
    if not word.startswith("-") or word == "-":
        return 0
    for at, letter in enumerate(word[1:], start=2):
        if letter in _PROGRAM:
            return 0
        if letter in _WITH_ARGUMENT:
            return 1 if word[at:] else 2
    return 1
