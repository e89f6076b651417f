"""CPU and memory of tasks over time: written, thinned and read back."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from csrun.jobs.folder import JobFolder
from csrun.launch.process import usage_log
from csrun.launch.process.task_usage import TaskUsage
from csrun.launch.process.usage_log import (
    AGE_SHARE,
    EVERY_S,
    FIRST_S,
    TaskLoad,
    UsageReader,
    UsageSample,
    UsageWriter,
)

LONG_S, MOST = 3 * 3600.0, 40  # a job that is as long for so few samples as days are for all


class Machine:
    """Fake clocks and tasks: rank 0 uses half a CPU, and one more MB per second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.pid, self.names = 1000.0, 7, ["rank-00000"]
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "time", lambda: 1e9 + self.now_s)
        monkeypatch.setattr(usage_log, "measure", self._measure)

    def _measure(self, logs: Path) -> dict[str, TaskUsage]:
        age_s = self.now_s - 1000.0
        usage = (self.pid, "S", age_s, age_s / 2, int(1e6 * age_s))
        return {name: TaskUsage(name, *usage) for name in self.names}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def let_pass(machine: Machine, writer: UsageWriter, seconds: float) -> None:
    until_s = machine.now_s + seconds
    while machine.now_s < until_s:
        writer.sample_if_due(machine.names)
        machine.now_s += writer.wait_s


def test_a_job_of_days_has_a_small_file_of_all_of_it(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_log, "MOST_SAMPLES", MOST)
    writer = UsageWriter(JobFolder(tmp_path), 0)
    machine.now_s += 1.0
    reader, most_bytes = UsageReader(tmp_path), 0
    for _ in range(12):
        let_pass(machine, writer, LONG_S / 12)
        reader.newest()
        most_bytes = max(most_bytes, (tmp_path / "usage-0.log").stat().st_size)
    assert most_bytes < 100 * MOST
    found = reader.history()
    assert found == UsageReader(tmp_path).history()
    assert MOST // 4 <= len(found) <= MOST
    times = [sample.taken_s - 1e9 - 1001.0 for sample in found]
    assert (times[0], times[-1]) == (0.0, pytest.approx(LONG_S, abs=EVERY_S))
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) <= 2 * LONG_S / (MOST // 4)
    assert gaps[-1] == pytest.approx(EVERY_S)
    for sample in found:
        load = sample.loads["rank-00000"]
        assert load.cpu_percent == pytest.approx(50.0, rel=1e-3)  # times have milliseconds
        assert load.memory_bytes == pytest.approx(1e6 * (sample.taken_s - 1e9 - 1000.0), abs=1000)


def test_a_thinned_file_is_read_again_whatever_its_inode(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may reuse the inode of a removed file, as here."""
    monkeypatch.setattr(usage_log, "MOST_SAMPLES", MOST)
    writer, reader = UsageWriter(JobFolder(tmp_path), 0), UsageReader(tmp_path)
    path, same = tmp_path / "usage-0.log", tmp_path / "same"
    let_pass(machine, writer, LONG_S / 12)
    assert reader.history()
    same.hardlink_to(path)
    size = path.stat().st_size
    let_pass(machine, writer, LONG_S)
    while path.stat().st_size <= size:
        let_pass(machine, writer, EVERY_S)
    assert path.stat().st_ino != same.stat().st_ino
    same.write_bytes(path.read_bytes())
    same.replace(path)
    assert reader.history() == UsageReader(tmp_path).history()


@pytest.mark.parametrize("data", [b"", b"\0" * 1000, None])
def test_a_full_file_without_a_readable_sample_is_begun_anew(
    data: bytes | None, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_log, "MOST_SAMPLES", 2)
    writer, path = UsageWriter(JobFolder(tmp_path), 0), tmp_path / "usage-0.log"
    let_pass(machine, writer, 2 * FIRST_S)
    path.unlink() if data is None else path.write_bytes(data)
    let_pass(machine, writer, FIRST_S)
    assert [sample.taken_s for sample in UsageReader(tmp_path).history()] == [1e9 + 1001.0]


def test_thinning_keeps_half() -> None:
    samples = [UsageSample(EVERY_S * number, ()) for number in range(usage_log.MOST_SAMPLES)]
    kept = usage_log.thinned(samples, usage_log.MOST_SAMPLES // 2)
    assert kept == [*samples[::2], samples[-1]]


@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_file_that_is_too_large_is_thinned(
    is_foreign: bool, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with few samples of many tasks, and one filled by another program."""
    machine.names = [f"rank-{number:05}" for number in range(100)]
    monkeypatch.setattr(usage_log, "MOST_BYTES", 100_000)
    writer, path = UsageWriter(JobFolder(tmp_path), 0), tmp_path / "usage-0.log"
    let_pass(machine, writer, 60.0)
    if is_foreign:
        with path.open("ab") as file:
            file.write(bytes(200_000))
    sizes = []
    for _ in range(60):
        let_pass(machine, writer, EVERY_S)
        sizes.append(path.stat().st_size)
    assert max(sizes[1:]) <= 100_000
    found = UsageReader(tmp_path).history()
    assert 1e9 + machine.now_s - found[-1].taken_s <= EVERY_S
    assert is_foreign or found[0].taken_s == 1e9 + 1000.0


def test_a_job_that_has_just_begun_is_looked_at_more_often(
    tmp_path: Path, machine: Machine
) -> None:
    writer, waits = UsageWriter(JobFolder(tmp_path), 0), []
    for _ in range(45):
        assert writer.wait_s == 0
        writer.sample_if_due(machine.names)
        writer.sample_if_due(machine.names)  # which is not due
        waits.append(writer.wait_s)
        machine.now_s += writer.wait_s
    assert len(UsageReader(tmp_path).history()) == 45
    assert (waits[0], waits[-1]) == (FIRST_S, EVERY_S)
    assert max(waits[20] / waits[10], waits[10] / waits[0]) <= (1 + AGE_SHARE) ** 11


def test_nodes_have_files_of_their_own_tasks(tmp_path: Path, machine: Machine) -> None:
    """Also on one machine, where all tasks of a job are visible."""
    machine.names, writers = ["rank-00000", "rank-00001"], []
    for node_id in range(2):
        writers.append(UsageWriter(JobFolder(tmp_path), node_id))
        writers[-1].sample_if_due({f"rank-0000{node_id}"})
        machine.now_s += 1.0
    writers[0].sample_if_due({"rank-00000"})
    reader = UsageReader(tmp_path)
    assert [[*sample.loads] for sample in reader.history()] == [
        ["rank-00000"], ["rank-00001"], ["rank-00000"]
    ]  # fmt: skip
    assert reader.newest() == {
        "rank-00000": TaskLoad("S", 50.0, 2_000_000), "rank-00001": TaskLoad("S", 50.0, 1_000_000)
    }  # fmt: skip
    machine.now_s += usage_log.RECENT_S
    assert set(reader.newest()) == {"rank-00000"}


def test_a_task_that_starts_again_begins_anew(tmp_path: Path, machine: Machine) -> None:
    writer = UsageWriter(JobFolder(tmp_path), 0)
    machine.now_s += 10.0
    writer.sample_if_due(machine.names)
    machine.now_s, machine.pid = machine.now_s + 10.0, 8
    writer.sample_if_due(machine.names)
    machine.now_s += 10.0
    writer.sample_if_due(())  # nothing lives any more
    loads = [sample.loads["rank-00000"].cpu_percent for sample in UsageReader(tmp_path).history()]
    assert loads == [50.0, 50.0]


def test_a_folder_that_is_gone_has_no_usage(tmp_path: Path, machine: Machine) -> None:
    writer, reader = UsageWriter(JobFolder(tmp_path / "gone"), 1), UsageReader(tmp_path / "gone")
    writer.sample_if_due(machine.names)
    assert (reader.newest(), reader.history()) == ({}, [])
