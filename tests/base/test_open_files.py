"""Limit on open files: raised temporarily, not inherited, with a message if refused."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from csrun.base import open_files
from csrun.base.errors import CsrunError, UsageError


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """Limits of this process, whose soft limit is set far below the hard one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield 256, before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_files_beyond_the_soft_limit_can_be_opened_while_there_is_room(
    limits: tuple[int, int],
) -> None:
    with open_files.room_for(300):
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(300)]
        for descriptor in opened:
            os.close(descriptor)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


def test_a_limit_that_suffices_stays(limits: tuple[int, int]) -> None:
    with open_files.room_for(1):
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


def test_more_than_the_hard_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 200))
    with (
        pytest.raises(CsrunError, match=r"limit on \S+ is 200: raise it there with `ulimit -n "),
        open_files.room_for(200),
    ):
        pass
    open_files.require((200 - open_files.SPARE) // 2, "python-ws")
    with pytest.raises(UsageError) as refused:
        open_files.require(1000, "python-ws")
    assert str(refused.value) == (
        "python-ws: 1,000 streamers need 2,064 open files in one process, the limit of this "
        "machine is 200: raise it, as root with `ulimit -n 2064` or in "
        "/etc/security/limits.conf, or use fewer streamers"
    )


def test_no_limit_at_all_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (endless, endless))
    open_files.require(10**6, "python")
    with open_files.room_for(10**6):
        pass


def test_another_process_gets_the_limit_that_this_one_was_started_with(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "_FOUND", limits)
    with open_files.room_for(300):
        say = "input(); import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
        child = subprocess.Popen(
            [sys.executable, "-c", say], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        open_files.restore(child.pid)
        assert child.communicate("\n")[0] == "256\n"
