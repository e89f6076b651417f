"""Limit of an account's processes (RLIMIT_NPROC), named in the error when fork fails.

Source: fork(2), EAGAIN: the account's limit, or one of the machine or of a cgroup
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from csrun.base.errors import CsrunError


@contextmanager
def naming_limit() -> Iterator[None]:
    """Context manager around the start of a process.

    Raises: CsrunError with the limit and the remedy, if the limit is reached
    """
    try:
        yield
    except BlockingIOError as error:
        raise CsrunError(
            f"cannot start another process on {os.uname().nodename}: {error.strerror}; the process"
            f" limit of this account is {_limit()}: raise it with `ulimit -u`, or run fewer"
            " tasks"
        ) from error


def _limit() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return "not set, so the machine or its cgroup is at its limit" if soft < 0 else f"{soft:,}"
