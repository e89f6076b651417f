"""Steps per second of a job with a monitor, compared with the same job without one.

One job runs in turns of two seconds: alone, with a process that wakes up once a second and does
nothing, beside the live screen of `csrun top`, and beside `csrun dashboard` with a page of the job.
It is stopped in between, and so are the others, so that other load on the machine affects all sides
equally. A turn is compared with the mean of the turns alone before and after it: a machine's speed
drifts. A ratio is the median of those of the rounds. That of the process which does nothing says
how exact the others are.

The page is a client that takes what a browser would get; a browser draws in processes of its own.
`csrun top -o json` is no side, as it ends: its processor time, mostly the start of Python, is a row
of its own. So is that of the dashboard's server without a page, and with a page of a run that has
ended.
"""

import http.client
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from statistics import median
from subprocess import DEVNULL, PIPE
from urllib.parse import SplitResult, urlsplit

from processes import cpu_seconds
from result import Result
from streamers import BINARIES, Job, Rate

from csrun.dashboard.run_table import folder_id
from csrun.records.events import EventWriter

TURN_S = 2.0
ROUNDS = 20  # 5 minutes; the rate of a turn varies by 2 to 3 % on an idle machine
COMMANDS = 5
WORKLOAD = "fc_mnist 10 x 50, {}"
PROMISED = 0.99
MOST_CPUS = 0.01  # of a program that watches
IDLE_S, IDLE_ROUNDS = 10.0, 3
LOGGED_STEPS = 5000  # of the run that has ended
ALONE, ASLEEP, SCREEN, PAGE = "not watched", "a process asleep", "csrun top", "csrun dashboard"
PROGRAM = str(BINARIES / "csrun")
SLEEP = "import os, time; os.nice(19); print(flush=True)\nwhile True: time.sleep(1)"


@contextmanager
def sleeper(state: str) -> Iterator[int]:
    """A process that wakes up as often as the screen, at its priority."""
    with _started([sys.executable, "-c", SLEEP], state, PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


@contextmanager
def screen(state: str) -> Iterator[int]:
    """The live screen on a separate terminal."""
    ours, theirs = pty.openpty()
    with _started([PROGRAM, "top"], state, theirs) as process:
        os.close(theirs)
        os.read(ours, 1)  # it has begun to draw
        _read_on(partial(os.read, ours))
        yield process.pid
    os.close(ours)


@contextmanager
def page(state: str) -> Iterator[int]:
    """The server of the dashboard, with a client that takes what a page of the job gets."""
    with server(state, state) as (pid, address), open_page(address, "1"):
        yield pid


@contextmanager
def server(folder: str, state: str) -> Iterator[tuple[int, SplitResult]]:
    """The server of the dashboard, and its address."""
    with _started([PROGRAM, "dashboard", folder], state, PIPE) as process:
        assert process.stdout is not None
        yield process.pid, urlsplit(process.stdout.readline().decode().split()[0])


@contextmanager
def open_page(address: SplitResult, run: str) -> Iterator[None]:
    """A client that takes what a page of a run gets; it has got the run's first message."""
    with closing(http.client.HTTPConnection(address.netloc)) as connection:
        connection.request("GET", f"/events?{address.query}&run={run}")
        answer = connection.getresponse()
        next(line for line in iter(answer.readline, b"") if line == b"event: run\n")
        _read_on(answer.read1)
        yield


SIDES = {ASLEEP: sleeper, SCREEN: screen, PAGE: page}


@contextmanager
def _started(
    words: Sequence[str], state: str, terminal: int
) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {**os.environ, "CSRUN_STATE_DIR": state, "TERM": "xterm-256color"}
    process = subprocess.Popen(words, env=environment, stdin=terminal, stdout=terminal)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _read_on(read: Callable[[int], bytes | None]) -> None:
    """Take what comes, in a thread."""

    def take() -> None:
        with suppress(OSError, ValueError):  # the other end is closed, or this one
            while read(1 << 16):
                pass

    threading.Thread(target=take, daemon=True).start()


@dataclass
class Watched:
    """Turns of a job with another process, compared with those of the job alone.

    rates: with it; ratios: steps per second over those alone; cpu_ratios: the same of the processor
    time of a step. used_s, shown_s: processor time of the process, and how long it ran.
    """

    pid: int
    rates: list[Rate] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    cpu_ratios: list[float] = field(default_factory=list)
    used_s: float = 0.0
    shown_s: float = 0.0

    def turn(self, job: Job, before: Rate) -> Rate:
        """One turn with the process, and one alone after it, which is returned."""
        used_s, began_s = cpu_seconds([self.pid]), time.monotonic()
        os.kill(self.pid, SIGCONT)
        rate = job.measure(TURN_S)
        os.kill(self.pid, SIGSTOP)
        self.used_s += cpu_seconds([self.pid]) - used_s
        self.shown_s += time.monotonic() - began_s
        after = job.measure(TURN_S)
        self.rates.append(rate)
        self.ratios.append(2 * rate.steps_per_s / (before.steps_per_s + after.steps_per_s))
        self.cpu_ratios.append(2 * rate.cpu_us / (before.cpu_us + after.cpu_us))
        return after

    def results(self, name: str, mode: str) -> Iterator[Result]:
        """Medians, compared with those of the job alone."""
        promised, most_cpus = (None, None) if name == ASLEEP else (PROMISED, MOST_CPUS)
        rate, cpu_us = (
            median(r.steps_per_s for r in self.rates),
            median(r.cpu_us for r in self.rates),
        )
        ratio, cpu_ratio = median(self.ratios), median(self.cpu_ratios)
        share = self.used_s / self.shown_s
        result = partial(Result, "watched", WORKLOAD.format(mode), name)
        yield result("steps/s", rate, ALONE, ratio, ROUNDS, at_least=promised)
        yield result("µs of CPU a step", cpu_us, ALONE, cpu_ratio, ROUNDS)
        yield result("CPUs", share, "one CPU", share, ROUNDS, at_most=most_cpus)


def command_cpu_s(state: str) -> float:
    """Processor time of one `csrun top -o json`: the median of some."""
    environment, found = {**os.environ, "CSRUN_STATE_DIR": state}, []
    for _ in range(COMMANDS):
        before = os.times()
        subprocess.run([PROGRAM, "top", "-o", "json"], env=environment, check=True, stdout=DEVNULL)
        after = os.times()
        found.append(sum(after[2:4]) - sum(before[2:4]))  # of children that have ended
    return median(found)


def idle_servers() -> Iterator[Result]:
    """CPUs that the server takes without a page, and with a page of a run that has ended."""
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        model_dir = Path(folder, "runs", "a")
        writer = EventWriter(model_dir)
        for step in range(LOGGED_STEPS):
            writer.scalars({"loss": 1.0, "seconds/compute": 1.0}, step)
        writer.close()
        for path in model_dir.iterdir():
            os.utime(path, (0, 0))  # else it would be a run that is going on
        with server(f"{folder}/runs", f"{folder}/state") as (pid, address), ExitStack() as pages:
            for side in ("csrun dashboard, no page", "csrun dashboard, a page of an ended run"):
                shares = [_share(pid) for _ in range(IDLE_ROUNDS)]
                share = median(shares)
                yield Result(
                    "watched", "no job", side, "CPUs", share, "one CPU", share, IDLE_ROUNDS,
                    at_most=MOST_CPUS,
                )  # fmt: skip
                pages.enter_context(open_page(address, folder_id(model_dir)))


def _share(pid: int) -> float:
    """CPUs that a process takes over a while."""
    used_s, began_s = cpu_seconds([pid]), time.monotonic()
    time.sleep(IDLE_S)
    return (cpu_seconds([pid]) - used_s) / (time.monotonic() - began_s)


def bench(mode: str) -> None:
    """Measure each side in turn."""
    with Job(mode, 1) as job, ExitStack() as beside:
        job.resume()
        pids = {name: beside.enter_context(side(job.state)) for name, side in SIDES.items()}
        job.stop()
        for pid in pids.values():
            os.kill(pid, SIGSTOP)
        found = {name: Watched(pid) for name, pid in pids.items()}
        once_s = command_cpu_s(job.state)
        alone = job.measure(TURN_S)
        for _ in range(ROUNDS):
            for each in found.values():
                alone = each.turn(job, alone)
    for name, each in found.items():
        for result in each.results(name, mode):
            result.print()
    Result(
        "watched", WORKLOAD.format(mode), "csrun top -o json", "CPU s a command", once_s,
        "one second", once_s, COMMANDS,
    ).print()  # fmt: skip


if __name__ == "__main__":
    for found in idle_servers():
        found.print()
    bench("pipelined")
