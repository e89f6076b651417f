import errno
import os
import signal

import pytest

from csrun.base.errors import CsrunError
from csrun.launch.process.forking import fork_task


def test_a_limit_of_processes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(CsrunError, match=r"cannot start another process .* `ulimit -u`"):
        fork_task((signal.SIGCHLD,), (), lambda: os._exit(1))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
