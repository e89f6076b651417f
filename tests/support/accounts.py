"""Another account: access of a second uid to our files, tried in a forked child. Needs root."""

import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

OTHER = 65533  # nobody's, and not the uid of any service
CHECKOUT = Path(__file__).parents[2]
ANYBODY_ENTERS = all(folder.stat().st_mode & 0o001 for folder in (CHECKOUT, *CHECKOUT.parents))
needs_two_accounts = pytest.mark.skipif(
    os.getuid() != 0 or not ANYBODY_ENTERS,
    reason="only root can be someone else, who must be able to read this checkout",
)


def as_account(uid: int, act: Callable[[], object], groups: tuple[int, ...] = ()) -> object:
    """Result of `act`, or the exception that it raises, in a process of another account."""
    heard, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        _become(uid, groups)
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


@contextmanager
def account_at_work(
    uid: int, act: Callable[[], AbstractContextManager[object]], groups: tuple[int, ...]
) -> Iterator[int]:
    """Process id of another account that is inside of the context manager returned by `act`."""
    heard, said = os.pipe()
    waiting, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(held)
        code = 1
        try:
            _become(uid, groups)
            with act():
                os.write(said, b"in")
                os.read(waiting, 1)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(said)
    os.close(waiting)
    is_in = os.read(heard, 2)
    os.close(heard)
    try:
        assert is_in, "it has failed before"
        yield pid
    finally:
        os.close(held)
        _, status = os.waitpid(pid, 0)
    assert status == 0


def _become(uid: int, groups: tuple[int, ...]) -> None:
    os.setgroups(groups)
    os.setgid(groups[0] if groups else uid)
    os.setuid(uid)
