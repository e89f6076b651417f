"""A job in its site's register: its record ends in a final state after any interruption."""

import errno
import json
import os
import signal
from pathlib import Path

import msgspec
import pytest

from csrun.base.errors import CsrunError, UsageError
from csrun.jobs import register
from csrun.jobs.record import JobRecord
from csrun.jobs.registered_job import registered
from csrun.jobs.request import JobOptions
from csrun.jobs.signals import ENDING_SIGNALS, EndedBySignalError, raised_as_errors
from csrun.site import Site, load

SITE = load("local")
COMMAND = ("/bin/true",)


def stored(state: str) -> dict[str, object]:
    path = Path(state) / "local" / "records" / "1.json"
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_a_job_has_its_options_or_its_programs_name(state: str) -> None:
    with registered(SITE, COMMAND, JobOptions(time_limit_s=90), 2, 5) as job:
        found = stored(state)
        assert (found["state"], found["name"], found["time_limit_s"]) == ("PENDING", "true", 90)
        assert (found["nodes"], found["tasks"]) == (2, 5)
    with registered(SITE, COMMAND, JobOptions("mine"), 1, 1) as job:
        assert job.record.name == "mine"


@pytest.mark.parametrize(
    ("signum", "error", "code"),
    [(signal.SIGINT, KeyboardInterrupt, 130), (signal.SIGTERM, EndedBySignalError, 143)],
)
def test_a_signal_while_the_job_is_entered_cancels_it(
    signum: int,
    error: type[BaseException],
    code: int,
    state: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [signal.getsignal(s) for s in ENDING_SIGNALS]
    write = register.write

    def interrupted(site: Site, record: JobRecord, *, durable: bool = True) -> None:
        write(site, record, durable=durable)
        if record.is_active:
            os.kill(os.getpid(), signum)

    monkeypatch.setattr(register, "write", interrupted)
    with pytest.raises(error), raised_as_errors(), registered(SITE, COMMAND, JobOptions(), 1, 1):
        raise AssertionError("the job must not begin")
    assert (stored(state)["state"], stored(state)["exit_code"]) == ("CANCELLED", code)
    assert [signal.getsignal(s) for s in ENDING_SIGNALS] == before


@pytest.mark.parametrize(
    ("error", "cause"),
    [(CsrunError("no way"), "no way"), (ValueError("a bug"), "ValueError: a bug")],
)
def test_an_error_of_the_launcher_is_the_cause(error: Exception, cause: str, state: str) -> None:
    with pytest.raises(type(error)), registered(SITE, COMMAND, JobOptions(), 1, 1):
        raise error
    found = stored(state)
    assert (found["state"], found["exit_code"], found["cause"]) == ("FAILED", 1, cause)


def test_a_job_without_logs_leaves_no_folder(state: str) -> None:
    with registered(SITE, COMMAND, JobOptions(), 1, 1, keeps_logs=False) as job:
        assert job.folder.path.is_dir()
    assert not job.folder.path.exists()
    assert stored(state)["logs"] is None


SHARED = msgspec.structs.replace(SITE, shared=True)


def refuse(*arguments: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("refused", ["register.show", "registered_job.publish_job", "folder.lock"])
def test_nothing_is_left_of_a_job_that_cannot_be_registered(
    refused: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = Path(state) / "local"
    top.mkdir(0o700, parents=True)
    with monkeypatch.context() as full:
        full.setattr(f"csrun.jobs.{refused}", refuse)
        with pytest.raises(UsageError), registered(SHARED, COMMAND, JobOptions(), 1, 1):
            raise AssertionError("the job must not begin")
    account = top / "accounts" / str(os.getuid())
    left = [*account.glob("jobs/*"), *account.glob("records/*"), *top.glob("board/*/*")]
    assert not left
    with registered(SHARED, COMMAND, JobOptions(), 1, 1) as job:
        assert job.job_id == 2
