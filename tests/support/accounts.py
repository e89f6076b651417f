"""Another account: what a second uid can do to ours, tried in a forked child. Needs root."""

import os
import pickle
from collections.abc import Callable

import pytest

OTHER = 65533  # nobody's, and not the uid of any service
needs_two_accounts = pytest.mark.skipif(os.getuid() != 0, reason="only root can be someone else")


def as_account(uid: int, act: Callable[[], object], groups: tuple[int, ...] = ()) -> object:
    """What `act` gives, or the exception that it raises, in a process of another account."""
    heard, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        os.setgroups(groups)
        os.setgid(groups[0] if groups else uid)
        os.setuid(uid)
        result: object
        try:
            result = act()
        except BaseException as error:
            result = error
        with open(said, "wb") as answer:
            pickle.dump(result, answer)
        os._exit(0)
    os.close(said)
    with open(heard, "rb") as answer:
        data = answer.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)
