"""Steps a second of a job with csrun top beside it, and without.

One job runs in turns of some seconds: alone, beside the live screen, and beside `csrun top -o json`
once a second. It is stopped in between, as the screen is, so that other load on the machine affects
all sides equally. A ratio is the median of those of the rounds, in each of which all sides had a
turn: a machine's speed changes more from round to round than by the screen. The promise is that of
the live screen: another start of Python a second takes processor time of its own, which a job that
uses all processors does without.
"""

import os
import pty
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from processes import cpu_seconds
from result import Result
from streamers import BINARIES, Job

TURN_S = 2.0
EVERY_S = 1.0  # of the live screen's frames, too
ROUNDS = 12
ALONE, LIVE = "no csrun top", "csrun top"
PROMISED = 0.99
TOP = str(BINARIES / "csrun"), "top"
Beside = Callable[[], AbstractContextManager[object]]


@contextmanager
def screen(state: str) -> Iterator[int]:
    """The live screen on a terminal of its own; its process, which is stopped."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "CSRUN_STATE_DIR": state, "TERM": "xterm-256color"}
    process = subprocess.Popen(TOP, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.read(ours, 1)  # it has begun to draw
    drain = threading.Thread(target=_read_all, args=(ours,))
    drain.start()
    process.send_signal(signal.SIGSTOP)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
        drain.join()
        os.close(ours)


def _read_all(terminal: int) -> None:
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:  # the other end is closed
        pass


@contextmanager
def resumed(pid: int) -> Iterator[None]:
    """A stopped process, resumed for the duration of the block."""
    os.kill(pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGSTOP)


@contextmanager
def repeated(state: str) -> Iterator[None]:
    """`csrun top -o json` once a second meanwhile."""
    over = threading.Event()
    environment = {**os.environ, "CSRUN_STATE_DIR": state}

    def run() -> None:
        while not over.is_set():
            began_s = time.monotonic()
            subprocess.run([*TOP, "-o", "json"], env=environment, check=True, capture_output=True)
            over.wait(max(0.0, EVERY_S - (time.monotonic() - began_s)))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def bench(mode: str) -> None:
    """Measure each side in turn, and print the medians beside those of the job alone."""
    with Job(mode, 1) as job, screen(job.state) as pid:
        sides: dict[str, Beside] = {
            ALONE: nullcontext,
            LIVE: lambda: resumed(pid),
            "csrun top -o json": lambda: repeated(job.state),
        }
        found: dict[str, list[float]] = {name: [] for name in sides}
        used_s, shown_s = cpu_seconds([pid]), 0.0
        for _ in range(ROUNDS):
            for name, beside in sides.items():
                began_s = time.monotonic()
                with beside():
                    found[name].append(job.measure(TURN_S).steps_per_s)
                shown_s += time.monotonic() - began_s if name == LIVE else 0.0
        share = (cpu_seconds([pid]) - used_s) / shown_s
    alone = found.pop(ALONE)
    for name, rates in found.items():
        ratios = (rate / other for rate, other in zip(rates, alone, strict=True))
        Result(
            "watched", f"fc_mnist 10 x 50, {mode}", name, "steps/s", statistics.median(rates),
            ALONE, statistics.median(ratios), ROUNDS, at_least=PROMISED if name == LIVE else None,
        ).print()  # fmt: skip
    Result(
        "watched", f"fc_mnist 10 x 50, {mode}", LIVE, "CPUs", share, "one CPU", share, ROUNDS
    ).print()  # fmt: skip


if __name__ == "__main__":
    bench("pipelined")
