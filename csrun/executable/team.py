"""Thread pool that computes the kernels of a program, and the calls that run on it.

The threads only run machine code; `team.run` and `team.work` in common.ll share rows, spin and
sleep. A pool belongs to the process that started it; a forked child starts its own when it needs
one.
"""

import atexit
import os
from collections.abc import Sequence
from ctypes import CDLL, addressof, c_int64, c_void_p, cast
from dataclasses import dataclass
from functools import partial
from threading import Thread

import numpy as np

from csrun.executable.arrays import empty
from csrun.executable.machine_code import MachineCode

#: Offsets in a pool's memory, in bytes; data written by different threads are in separate cache
#: lines.
NUMBER, DONE, JOB, GENERATION, SLEEPERS, STOP, BUSY, SYSTEM = 0, 64, 128, 192, 256, 320, 384, 448
THREADS = SYSTEM + 16
PARTS, PART_BYTES = 512, 64  # one part for each thread
_JOIN_S = 1.0


@dataclass(frozen=True)
class Job:
    """Rows that threads share in chunks: a function, and its arguments for each thread.

    function: its address.
    arguments: addresses of arrays of words, one per thread.
    """

    function: int
    arguments: Sequence[int]
    rows: int
    chunk: int


class Team:
    """Thread pool of this process; the calling thread is one of its threads."""

    def __init__(self, code: MachineCode, threads: int) -> None:
        self.threads = threads
        self._code = code
        self._memory = empty(PARTS + threads * PART_BYTES)
        self._memory[:] = 0
        self.address: int = self._memory.ctypes.data
        libc = CDLL(None)
        system = self._memory[SYSTEM:].view(np.uint64)
        system[0] = cast(libc.syscall, c_void_p).value or 0
        system[1] = cast(libc.sched_yield, c_void_p).value or 0
        self._memory[THREADS:].view(np.uint64)[0] = threads
        work = code.function("team.work", c_void_p, c_int64)
        self._helpers = [
            Thread(target=work, args=(self.address, n), name=f"team {n}", daemon=True)
            for n in range(1, threads)
        ]
        for helper in self._helpers:
            helper.start()

    def close(self) -> None:
        """Stop the other threads."""
        self._code.function("team.stop", c_void_p)(self.address)
        for helper in self._helpers:
            helper.join(_JOIN_S)


_teams: dict[int, Team] = {}  # pools of this process by their number of threads


def team_of(code: MachineCode, threads: int) -> Team | None:
    """Return the pool with this many threads, started on first use; None for one thread."""
    if threads <= 1:
        return None
    if threads not in _teams:
        _teams[threads] = Team(code, threads)
    return _teams[threads]


@atexit.register
def _close_all() -> None:
    # Their code is unmapped while the interpreter exits.
    for team in _teams.values():
        team.close()
    _teams.clear()


os.register_at_fork(after_in_child=_teams.clear)


class BoundCall(partial[None]):
    """Call that runs jobs one after the other; memory: objects that the jobs point into."""

    jobs: tuple[Job, ...]
    code: MachineCode
    team: Team | None
    memory: object


def bind_jobs(
    code: MachineCode, team: Team | None, jobs: Sequence[Job], memory: object = None
) -> BoundCall:
    """Return the call that runs jobs."""
    tables = [(c_void_p * len(job.arguments))(*job.arguments) for job in jobs]
    words: list[int] = []
    for job, table in zip(jobs, tables, strict=True):
        words += [job.function, addressof(table), job.rows, job.chunk]
    own = (c_int64 * max(len(words), 1))(*words)
    address = team.address if team is not None else None
    run = code.function("team.run", c_void_p, c_void_p, c_int64)
    call = BoundCall(run, address, addressof(own), len(jobs))
    call.jobs, call.code, call.team = tuple(jobs), code, team
    call.memory = tables, own, memory
    return call


def joined_jobs(calls: Sequence[BoundCall]) -> BoundCall:
    """Merge calls on the same pool into one."""
    first, jobs = calls[0], [job for call in calls for job in call.jobs]
    return bind_jobs(first.code, first.team, jobs, calls)
