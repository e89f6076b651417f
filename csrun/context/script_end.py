"""Checks of a task's script that run when it has ended without an error."""

from collections.abc import Callable

_checks: list[Callable[[], None]] = []


def at_script_end(check: Callable[[], None]) -> None:
    """Register `check` for the end of the task; a CsrunError that it raises becomes the task's
    error.
    """
    _checks.append(check)


def check_script_end() -> None:
    """Run the checks in the order of registration.

    Raises: CsrunError of the first check that fails
    """
    for check in _checks:
        check()
