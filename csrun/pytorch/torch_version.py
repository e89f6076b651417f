"""Which PyTorch there is: one that csrun was tested with, or another."""

import logging
from functools import cache
from importlib.metadata import version

TESTED = "2.13"

log = logging.getLogger("csrun")


def is_tested(found: str) -> bool:
    """Whether a version of PyTorch, as its package tells it, is the tested one: 2.13.1+cpu is."""
    return found.split("+")[0].split(".")[:2] == TESTED.split(".")


@cache  # says it once
def warn_of_untested() -> None:
    """Say that this PyTorch is not the tested one, if so. Not at the import: a fork server does
    that, whose log nobody reads.
    """
    if not is_tested(found := version("torch")):
        log.warning(
            "cerebras_torch was tested with PyTorch %s, this is %s; operators that changed are "
            "reported by name: pip install 'torch==%s.*' installs the tested version",
            TESTED,
            found,
            TESTED,
        )
