"""Checks of a task's script that run when it has ended without an error."""

from collections.abc import Callable

_checks: list[Callable[[], None]] = []


def at_script_end(check: Callable[[], None]) -> None:
    """Have the task's end call `check`, whose CsrunError is the task's."""
    _checks.append(check)


def check_script_end() -> None:
    """Run the checks, in the order in which they were added.

    Raises: CsrunError of the first that fails
    """
    for check in _checks:
        check()
