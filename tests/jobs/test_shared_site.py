"""A site shared by accounts: what each sees of the other's job, and cannot do to it."""

import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
import pytest
from support.accounts import account_at_work, as_account, needs_two_accounts

from csrun import system
from csrun.base import stored
from csrun.base.errors import UsageError
from csrun.base.files import SHARED, make_for_group
from csrun.base.mode import ExecutionMode
from csrun.cli import cs, csctl, frame
from csrun.context import Telemetry
from csrun.context.job import LeaseLog
from csrun.jobs import cancel, overview, register
from csrun.jobs.queue import allocate
from csrun.jobs.registered_job import RegisteredJob, registered
from csrun.jobs.request import JobOptions
from csrun.site import load
from csrun.site.load import SHIPPED

pytestmark = [needs_two_accounts, pytest.mark.usefixtures("state_folder")]
ADA, BOB, GROUP = 65531, 65532, 65530
SITE = msgspec.structs.replace(load("local"), shared=True)
SYSTEM = SITE.systems[0]
SECRET_COMMAND = ("python", "run.py", "--token", "precious")
TOP = Path("state/local")


@pytest.fixture
def own_folder() -> Iterator[Path]:
    with TemporaryDirectory() as folder, chdir(folder):
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077], ids="umask {:03o}".format)
def state_folder(
    request: pytest.FixtureRequest, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """State folder as in docs/cs-login.md, outside of pytest's folders, which are private."""
    text = (SHIPPED / "local.yaml").read_text()
    (own_folder / "site.yaml").write_text(text + "shared: true\n")
    (own_folder / "site.yaml").chmod(0o644)
    for folder in ("state", "state/local"):
        os.mkdir(folder)
        os.chown(folder, 0, GROUP)
        os.chmod(folder, 0o3770)
    monkeypatch.setenv("CSRUN_STATE_DIR", "state")
    monkeypatch.setenv("CSRUN_SITE", "site.yaml")
    before = os.umask(request.param)
    yield
    os.umask(before)


@contextmanager
def running() -> Iterator[RegisteredJob]:
    """Job that holds a system, and has reached step 5."""
    with registered(SITE, SECRET_COMMAND, JobOptions(), 1, 1) as job:
        job.folder.create_subfolders()
        job.start(("node1",))
        uses = LeaseLog(job.telemetry_dir)
        uses.record_request(SYSTEM.name)
        lease = system.acquire(SITE, SYSTEM, ExecutionMode.PIPELINED, f"job {job.job_id}")
        with lease, uses.record_lease():
            Telemetry((SYSTEM.name,), "training", 5, 9, None, 1024, "loss 1", 0.0).write(
                job.telemetry_dir
            )
            yield job


@pytest.fixture
def adas_job(state_folder: None) -> Iterator[int]:
    with account_at_work(ADA, running, (GROUP,)) as launcher:
        yield launcher


def as_bob(act: Callable[[], object]) -> object:
    return as_account(BOB, act, (GROUP,))


def printed(command: click.Command, *words: str) -> str:
    """Output of a command on this test's site."""
    said = io.StringIO()
    with redirect_stdout(said):
        frame.run(command, [*words])
    return said.getvalue()


@pytest.mark.usefixtures("adas_job")
def test_the_others_job_is_listed_without_its_command_line() -> None:
    printed(csctl.csctl, "get", "jobs")  # what it imports is root's to read
    listed = as_bob(lambda: printed(csctl.csctl, "get", "jobs"))
    assert isinstance(listed, str), listed
    assert f"uid {ADA}" in listed
    assert "RUNNING" in listed
    (record,) = as_bob(lambda: overview.jobs(SITE, all_states=True))  # type: ignore[misc]
    assert (record.job_id, record.uid, record.system) == (1, ADA, SYSTEM.name)
    assert (record.command, record.working_dir, record.logs) == ((), "", None)
    (own,) = as_account(ADA, lambda: overview.jobs(SITE, all_states=True), (GROUP,))  # type: ignore[misc]
    assert own.command == SECRET_COMMAND


@pytest.mark.usefixtures("adas_job")
def test_the_others_telemetry_and_session_are_shown() -> None:
    for words, wanted in ((("telemetry", "--once"), "training"), (("session", "list"), "RUNNING")):
        printed(cs.cs, *words)
        shown = as_bob(lambda words=words: printed(cs.cs, *words))  # type: ignore[misc]
        assert isinstance(shown, str), shown
        assert wanted in shown


def test_nothing_of_it_can_be_read_changed_joined_or_stalled(adas_job: int) -> None:
    job = TOP / "accounts" / str(ADA) / "jobs" / "1"
    board = TOP / "board" / str(ADA)
    attempts = [
        lambda: (job / "secret").read_bytes(),
        lambda: os.listdir(job / "logs"),
        lambda: (job / "link.sock").touch(),
        lambda: (TOP / "accounts").rename(TOP / "aside"),
        lambda: (TOP / "accounts" / str(ADA)).rename(TOP / "accounts" / "aside"),
        lambda: board.rename(TOP / "board" / "aside"),
        lambda: (board / "1" / "record.json").write_text("{}"),
        lambda: os.open(board / "1" / "live.lock", os.O_RDWR),
        lambda: (board / "9").mkdir(),
        lambda: os.kill(adas_job, 15),
    ]
    for number, attempt in enumerate(attempts):
        assert isinstance(as_bob(attempt), PermissionError), number
    refused = as_bob(lambda: cancel.cancel(SITE, 1, 0, "csctl cancel"))
    assert isinstance(refused, UsageError)
    assert "only its owner can cancel it" in str(refused)
    for path in (job, TOP / "accounts" / str(ADA)):
        assert stat.S_IMODE(path.stat().st_mode) & 0o777 == 0o700


@pytest.mark.parametrize("number", [1, 7])
def test_a_forged_record_is_its_forgers_and_ends_nothing(adas_job: int, number: int) -> None:
    """One with the number of another account's job is not listed."""

    def forge() -> None:
        record = msgspec.structs.replace(
            register.read(SITE, 1), job_id=number, uid=ADA, user="root"
        )
        folder = TOP / "board" / str(BOB) / str(number)
        folder.mkdir(parents=True)
        (folder / register.RECORD_FILE).write_bytes(stored.text_of(record))
        for shown in (folder / register.RECORD_FILE, folder, folder.parent):
            shown.chmod(0o755)

    assert as_bob(forge) is None
    listed = {job.job_id: job.user for job in overview.jobs(SITE, all_states=True)}
    assert listed == {number: f"uid {BOB}"} | {1: f"uid {ADA}"}
    if number == 7:
        refused = as_account(ADA, lambda: cancel.cancel(SITE, 7, 0, "csctl cancel"), (GROUP,))
        assert isinstance(refused, UsageError)
    os.kill(adas_job, 0)


@pytest.mark.usefixtures("adas_job")
def test_numbers_and_leases_are_of_all_accounts() -> None:
    def draw() -> tuple[int, int]:
        with registered(SITE, ("true",), JobOptions(), 1, 1) as job:
            return job.job_id, system.users_of(SITE, SYSTEM)

    assert as_bob(draw) == (2, 1)


def test_the_system_is_free_for_the_next_account_when_the_job_has_ended() -> None:
    with account_at_work(ADA, running, (GROUP,)):
        pass
    with account_at_work(BOB, running, (GROUP,)):
        (holder,) = [s.job for s in overview.systems(SITE) if s.name == SYSTEM.name]
    assert holder == 2


def draw() -> int:
    """Number of a one-node job that holds a system."""
    with registered(SITE, ("true",), JobOptions(), 1, 1) as job:
        holder = f"job {job.job_id}"
        with (
            allocate(SITE, 1, job.job_id, lambda said: None, lambda reason: None),
            system.acquire(SITE, SYSTEM, ExecutionMode.PIPELINED, holder),
        ):
            return job.job_id


LINKED_FOLDERS = (
    "nodes",
    "systems",
    "board",
    "accounts",
    "nodes/line",
    f"systems/{SYSTEM.name}.line",
    f"board/{ADA}",
    f"accounts/{ADA}",
)
LINKED_LOCKS = ("nodes/last_job.lock", "nodes/node1.lock", f"systems/{SYSTEM.name}.change.lock")


@pytest.mark.parametrize("place", [*LINKED_FOLDERS, *LINKED_LOCKS])
@pytest.mark.parametrize("state_folder", [0o022], indirect=True)
def test_nothing_is_written_where_a_planted_link_leads(place: str, own_folder: Path) -> None:
    """Bob's link to Ada's folder, or to a file in it, from before the site has a job."""
    private = own_folder / "private"
    (private / "jobs" / "1").mkdir(parents=True)
    (private / "thesis").write_text("precious")
    for path in (private, *private.rglob("*")):
        os.chown(path, ADA, ADA)
        path.chmod(0o700)

    def plant() -> None:
        link = TOP / place
        if link.parent != TOP:
            make_for_group(link.parent, SHARED)
        link.symlink_to(private / "thesis" if place in LINKED_LOCKS else private)

    assert as_bob(plant) is None
    refused = as_account(ADA, draw, (GROUP,))
    assert isinstance(refused, UsageError), refused
    assert str(refused).startswith(f"{TOP / place}: ")
    assert sorted(private.rglob("*")) == [
        private / "jobs",
        private / "jobs" / "1",
        private / "thesis",
    ]
    assert (private / "thesis").read_text() == "precious"


@pytest.mark.parametrize("state_folder", [0o022], indirect=True)
def test_an_administrators_link_is_followed(own_folder: Path) -> None:
    elsewhere = own_folder / "elsewhere"
    elsewhere.mkdir()
    os.chown(elsewhere, 0, GROUP)
    elsewhere.chmod(0o3770)
    (TOP / "accounts").symlink_to(elsewhere)
    assert as_account(ADA, draw, (GROUP,)) == 1
    assert (elsewhere / str(ADA) / "jobs").is_dir()
