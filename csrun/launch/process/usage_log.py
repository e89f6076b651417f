"""CPU and memory of a job's tasks over time: one file per node in the job folder.

The parent process of a node's tasks appends a line every few seconds. `csrun top` and the dashboard
read the files, on any machine. A full file is thinned out, so that it stays small in a job of
several days.
"""

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from heapq import merge
from pathlib import Path
from zlib import crc32

import msgspec

from csrun.base.files import open_regular, read_file, write_atomic
from csrun.base.stored import UNREADABLE
from csrun.jobs.folder import JobFolder
from csrun.launch.process.task_usage import TaskUsage, measure

FILE = "usage-{}.log"
FIRST_S, EVERY_S = 0.5, 5.0  # seconds between samples, at the beginning and later
AGE_SHARE = 0.1  # interval of samples as a share of the elapsed time, in between
MOST_SAMPLES = 600
RECENT_S = 4 * EVERY_S  # clocks of nodes differ, and NFS delays
MOST_BYTES = 32 << 20  # maximum size of a file; a larger one is thinned out
_HEAD_BYTES = 32  # bytes that identify a file; no sample's line is shorter


class UsageSample(msgspec.Struct, frozen=True, array_like=True):
    """Usage of a node's tasks at one moment. Units: taken_s in seconds since the epoch"""

    taken_s: float
    tasks: tuple[TaskUsage, ...]


_decoder = msgspec.json.Decoder(UsageSample)


def _line_of(sample: UsageSample) -> bytes:
    text = msgspec.json.encode(sample)
    return b"%08x %b\n" % (crc32(text), text)


def _samples_in(data: bytes) -> Iterator[UsageSample]:
    """Decode the samples of complete lines; damaged lines are skipped."""
    for line in data.splitlines():
        checksum, _, text = line.partition(b" ")
        if checksum == b"%08x" % crc32(text):
            with suppress(*UNREADABLE):
                yield _decoder.decode(text)


def thinned(samples: Sequence[UsageSample], most: int) -> list[UsageSample]:
    """Return the first sample of each of at most this many equal time spans, and the last sample.

    Spans are 2^k sample intervals, so thinning repeatedly gives the same samples as thinning once.
    """
    if not samples:
        return []
    begun_s, span_s = samples[0].taken_s, EVERY_S
    while True:
        latest_first = reversed(samples[:-1])
        kept = {(each.taken_s - begun_s) // span_s: each for each in latest_first}
        if len(kept) <= most:
            return [*reversed(kept.values()), samples[-1]]
        span_s *= 2


class UsageWriter:
    """Writer of one node's file."""

    def __init__(self, folder: JobFolder, node_id: int) -> None:
        self._path, self._logs = folder.path / FILE.format(node_id), folder.logs
        self._begun_s = self._due_s = time.monotonic()
        self._samples = self._bytes = 0

    @property
    def wait_s(self) -> float:
        """Seconds until the next sample is due."""
        return max(0.0, self._due_s - time.monotonic())

    def sample_if_due(self, names: Collection[str]) -> None:
        """Write a sample of this node's living tasks if one is due; on a full disk it is lost."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + min(EVERY_S, max(FIRST_S, AGE_SHARE * (now_s - self._begun_s)))
        tasks = tuple(usage for usage in measure(self._logs).values() if usage.name in names)
        if tasks:
            with suppress(OSError):
                self._append(UsageSample(round(time.time(), 3), tasks))

    def _append(self, sample: UsageSample) -> None:
        line = _line_of(sample)
        if self._samples >= MOST_SAMPLES or self._bytes + len(line) > MOST_BYTES:
            self._thin()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with open(open_regular(self._path, flags, 0o600), "ab", buffering=0) as file:
            self._bytes = os.fstat(file.fileno()).st_size + file.write(line)
        self._samples += 1

    def _thin(self) -> None:
        """Thin the file out to half of its size; one without a readable sample is restarted."""
        data = b""
        with suppress(OSError):  # also if another process has enlarged it
            data = read_file(self._path, MOST_BYTES)
        samples = [*_samples_in(data)]
        kept = thinned(samples, max(1, min(MOST_SAMPLES, len(samples)) // 2))
        # Not by inode number, which a file system may reuse for the next file.
        head = b"thinned %b\n" % os.urandom(8).hex().encode()
        text = head + b"".join(map(_line_of, kept))
        write_atomic(self._path, text, durable=False)
        self._samples, self._bytes = len(kept), len(text)


class TaskLoad(msgspec.Struct, frozen=True):
    """Load of a task.

    state: as in its TaskUsage.
    cpu_percent: percent of one CPU since the previous sample; in the first sample since the task's
        start.
    """

    state: str
    cpu_percent: float
    memory_bytes: int


class LoadSample(msgspec.Struct, frozen=True):
    """Loads of a node's tasks at one time, by log name."""

    taken_s: float
    loads: dict[str, TaskLoad]


class _NodeFile:
    """One node's file, read as it grows, and from the start after it was thinned out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin(b"")

    def _begin(self, head: bytes) -> None:
        self._head, self._offset = head, 0
        self._before: dict[str, tuple[float, TaskUsage]] = {}
        self.samples: list[LoadSample] = []

    def read(self) -> None:
        """Read new samples; unreadable ones are skipped."""
        with suppress(OSError):
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
            with open(open_regular(self._path, flags), "rb", buffering=0) as file:
                head = os.pread(file.fileno(), _HEAD_BYTES, 0)
                if head != self._head:
                    self._begin(head)
                if os.fstat(file.fileno()).st_size > self._offset:
                    file.seek(self._offset)
                    self._take(file.read(MOST_BYTES))

    def _take(self, data: bytes) -> None:
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for sample in _samples_in(whole):
            loads = {usage.name: self._load(usage, sample.taken_s) for usage in sample.tasks}
            self._before = {usage.name: (sample.taken_s, usage) for usage in sample.tasks}
            self.samples.append(LoadSample(sample.taken_s, loads))

    def _load(self, usage: TaskUsage, taken_s: float) -> TaskLoad:
        seconds, cpu_s = usage.age_s, usage.cpu_s
        before_s, before = self._before.get(usage.name, (taken_s, usage))
        if before.pid == usage.pid and taken_s > before_s:
            seconds, cpu_s = taken_s - before_s, max(0.0, usage.cpu_s - before.cpu_s)
        percent = 100 * cpu_s / seconds if seconds > 0 else 0.0
        return TaskLoad(usage.state, percent, usage.memory_bytes)


class UsageReader:
    """Reader of the loads of a job's tasks."""

    def __init__(self, job_dir: Path) -> None:
        self._job_dir = job_dir
        self._files: dict[Path, _NodeFile] = {}

    def newest(self) -> dict[str, TaskLoad]:
        """Return the loads of each node's newest sample, if it is recent."""
        oldest_s, found = time.time() - RECENT_S, dict[str, TaskLoad]()
        for file in self._read():
            if file.samples and file.samples[-1].taken_s >= oldest_s:
                found |= file.samples[-1].loads
        return found

    def sampled_logs(self) -> set[str]:
        """Return the logs of all tasks that a sample has, also of those that have ended."""
        return {log for file in self._read() for sample in file.samples for log in sample.loads}

    def history(self) -> list[LoadSample]:
        """Return the samples of all nodes, oldest first."""
        each = (file.samples for file in self._read())
        return list(merge(*each, key=lambda sample: sample.taken_s))

    def _read(self) -> list[_NodeFile]:
        for path in self._job_dir.glob(FILE.format("*")):
            self._files.setdefault(path, _NodeFile(path)).read()
        return list(self._files.values())
