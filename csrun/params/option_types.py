"""What an option of a run.py may hold, refused in the words of a params file's refusals."""

import click


def count(value: str) -> int:
    """A whole number from 1 on.

    Raises: click.BadParameter
    """
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"must be a whole number >= 1, got {value}")
    return int(value)


def text(value: str) -> str:
    """Text that is not empty.

    Raises: click.BadParameter
    """
    if not value:
        raise click.BadParameter("must not be empty; is a variable of the shell unset?")
    return value
