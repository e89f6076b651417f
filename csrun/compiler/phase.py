"""The parts of a step."""

from enum import StrEnum


class Phase(StrEnum):
    """In which of a program's functions a kernel's text stands."""

    FORWARD = "forward"
    BACKWARD = "backward"
