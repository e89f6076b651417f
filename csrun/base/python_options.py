"""Options of the Python interpreter that precede the script on its command line."""

_WITH_ARGUMENT = "WX"
_LONG_WITH_ARGUMENT = "--check-hash-based-pycs"
_PROGRAM = "cm"  # no option follows `-c code` or `-m module`


def split_options(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the arguments of `python` into its options, and the script, `-m` or `-c` with the rest.

    Source: Python's manual, "Command line and environment"
    """
    at = 0
    while at < len(arguments) and (length := _length(arguments[at])):
        at += length
    return arguments[:at], arguments[at:]


def _length(argument: str) -> int:
    """Return the number of arguments of the option that starts here; 0 if it is not an option."""
    if argument == _LONG_WITH_ARGUMENT:
        return 2
    if argument.startswith("--"):
        return 1
    if not argument.startswith("-") or argument == "-":
        return 0
    for at, letter in enumerate(argument[1:], start=2):
        if letter in _PROGRAM:
            return 0
        if letter in _WITH_ARGUMENT:
            return 1 if argument[at:] else 2
    return 1
