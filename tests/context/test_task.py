"""Environment of a task: rank, role and CPUs."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from csrun.base.errors import CsrunError, PeerLost, UsageError
from csrun.base.mode import ExecutionMode
from csrun.context import Host, Hosts, JobFile, Role, TaskEntry, TaskReportKind, current
from csrun.context.launcher_link import report_of

ENTRIES = tuple(
    TaskEntry(rank, role, f"node{rank}", rank, 0, (0,))
    for rank, role in enumerate((Role.CHIEF, Role.MEMORYX, Role.STREAMER, Role.STREAMER))
)
JOB = JobFile(
    7, ExecutionMode.WEIGHT_STREAMING, ("python-ws", "run.py"), "/", "local", 4, 1, ENTRIES
)


@pytest.fixture
def job_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    JOB.write(tmp_path)
    monkeypatch.setenv("CSRUN_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("SLURM_PROCID", "2")
    return tmp_path


@pytest.fixture(autouse=True)
def _forget_the_task() -> Iterator[None]:
    current.cache_clear()
    yield
    current.cache_clear()


def test_rank_role_and_streamers(job_dir: Path) -> None:
    task = current()
    assert task is not None
    assert (task.rank, task.role, task.mode) == (2, Role.STREAMER, JOB.mode)
    assert task.streamers == (2, 3)
    assert task.wafer is None


@pytest.mark.usefixtures("job_dir")
def test_a_wafer_knows_its_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("CSRUN_WAFER", "cs2-02")
    task = current()
    assert task is not None
    assert (task.rank, task.role, task.wafer) == (0, Role.WAFER, "cs2-02")


def test_without_a_launcher_there_is_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CSRUN_JOB_DIR", raising=False)
    assert current() is None


REPORTS: list[tuple[BaseException, TaskReportKind, int]] = [
    (ValueError("x"), TaskReportKind.ERROR, 1),
    (UsageError("x"), TaskReportKind.USER_ERROR, 2),
    (CsrunError("x"), TaskReportKind.USER_ERROR, 1),
    (PeerLost("x"), TaskReportKind.PEER_LOST, 1),
    (SystemExit(3), TaskReportKind.EXIT, 3),
    (SystemExit("text"), TaskReportKind.EXIT, 1),
    (SystemExit(256 + 4), TaskReportKind.EXIT, 4),
]


@pytest.mark.parametrize(("error", "kind", "code"), REPORTS)
def test_reports(error: BaseException, kind: TaskReportKind, code: int) -> None:
    report = report_of(1, error, "trace", 10)
    assert (report.kind, report.exit_code, report.log_bytes) == (kind, code, 10)


def test_the_host_is_known_where_nodes_are_machines_of_their_own(job_dir: Path) -> None:
    assert current().host is None  # type: ignore[union-attr]
    current.cache_clear()
    entry = msgspec.structs.replace(ENTRIES[2], address="10.0.0.3")
    tasks = (*ENTRIES[:2], entry, ENTRIES[3])
    msgspec.structs.replace(JOB, tasks=tasks, hosts=Hosts.SEPARATE).write(job_dir)
    assert current().host == Host("node2", "10.0.0.3")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("of_others", "hosts", "cpus"),
    [
        ((1, 2), Hosts.SHARED, (0,)),  # none in common
        ((0,), Hosts.SHARED, (0,)),  # both have the same one
        ((0, 1), Hosts.SHARED, (0, 1)),  # one in common
        ((0, 1), Hosts.SEPARATE, (0,)),  # CPU 0 of another machine is another one
    ],
)
def test_streamers_that_share_a_cpu_run_on_those_of_all(
    job_dir: Path, of_others: tuple[int, ...], hosts: Hosts, cpus: tuple[int, ...]
) -> None:
    """The chief has all CPUs, which does not tell how scarce they are."""
    chief = msgspec.structs.replace(ENTRIES[0], cpus=(0, 1, 2, 3))
    other = msgspec.structs.replace(ENTRIES[3], cpus=of_others)
    tasks = (chief, *ENTRIES[1:3], other)
    msgspec.structs.replace(JOB, tasks=tasks, hosts=hosts).write(job_dir)
    assert current().streaming_cpus == cpus  # type: ignore[union-attr]
