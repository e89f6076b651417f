"""Check of the installed PyTorch against the tested version."""

import logging
from functools import cache
from importlib.metadata import version

TESTED = "2.13"

log = logging.getLogger("csrun")


def is_tested(found: str) -> bool:
    """True if a version of PyTorch belongs to the tested release, e.g. 2.13.1+cpu."""
    return found.split("+")[0].split(".")[:2] == TESTED.split(".")


@cache  # warns once
def warn_of_untested() -> None:
    """Warn about a PyTorch other than the tested one.

    Not called on import, because a fork server imports this, and its log is not read.
    """
    if not is_tested(found := version("torch")):
        log.warning(
            "cerebras_torch was tested with PyTorch %s, this is %s; operators that changed are "
            "reported by name: pip install 'torch==%s.*' installs the tested version",
            TESTED,
            found,
            TESTED,
        )
